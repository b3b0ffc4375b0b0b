"""`gatelock init`: writes a configuration, and the file that makes a program write its log."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

from analyzer.faces.cli.described_options import Option
from analyzer.faces.cli.exit_codes import usage_error
from analyzer.faces.cli.options import JsonOption
from analyzer.faces.cli.output import outcome
from analyzer.kernel.refused_values import quote

PACKAGE = Path(__file__).parents[3]  # `analyzer`; importlib.resources would cost a tenth of `--help`
OUTPUT = Path("gatelock.toml")
FILE_LINE = re.compile(r'^file( *)= "[^"]*"(?: *#.*)?', re.MULTILINE)  # the comment names the other key


class Origin(StrEnum):
    REQUESTLOG = "requestlog"
    NGINX = "nginx"
    CADDY = "caddy"
    TRAEFIK = "traefik"
    ENVOY = "envoy"
    COMBINED = "combined"
    VHOST = "vhost"
    JSON_FILE = "json-file"
    LITELLM = "litellm"
    ENVOY_AI_GATEWAY = "envoy-ai-gateway"
    KONG_AI = "kong-ai"
    OPENAI_SDK_LOG = "openai-sdk-log"


class Template(NamedTuple):
    """Files of the folder `deploy`: the analyzer's source, and what a program needs to write its log."""

    source: str
    program: str | None = None
    place: str = ""  # where the program's file belongs
    policies: str = "policies.toml"

    @property
    def written_as(self) -> str:
        """The name under which the program's file is written. A module of Python has it already."""
        name = Path(self.program or "").name
        return name if name.startswith("gatelock") else f"gatelock-{name}"


TOKENS = "llm/policies.toml"

# A new origin is an entry here, its files in `deploy`, and a sample in tests/cli/test_init.py.
TEMPLATES = {
    Origin.REQUESTLOG: Template("requestlog.toml"),
    Origin.NGINX: Template("proxies/nginx.toml", "proxies/nginx.conf", "include it in http { ... } of nginx"),
    Origin.CADDY: Template("proxies/caddy.toml", "proxies/Caddyfile", "merge it into your Caddyfile"),
    Origin.TRAEFIK: Template(
        "proxies/traefik.toml", "proxies/traefik.yaml", "merge it into the static configuration of Traefik"
    ),
    Origin.ENVOY: Template(
        "proxies/envoy.toml", "proxies/envoy.yaml", "merge it into the HTTP connection manager of Envoy"
    ),
    Origin.COMBINED: Template("combined.toml"),
    Origin.VHOST: Template("vhost.toml"),
    Origin.JSON_FILE: Template("json-file.toml"),
    Origin.LITELLM: Template(
        "llm/litellm.toml",
        "llm/gatelock_litellm.py",
        "put it beside LiteLLM's config.yaml, and name it there",
        TOKENS,
    ),
    Origin.ENVOY_AI_GATEWAY: Template(
        "llm/envoy-ai-gateway.toml",
        "llm/envoy-ai-gateway.yaml",
        "merge it into the resources of Envoy AI Gateway",
        TOKENS,
    ),
    Origin.KONG_AI: Template(
        "llm/kong-ai.toml", "llm/kong-ai.yaml", "merge it into the declarative configuration of Kong", TOKENS
    ),
    Origin.OPENAI_SDK_LOG: Template(
        "llm/openai-sdk-log.toml", "llm/gatelock_openai.py", "import it in your application", TOKENS
    ),
}


def init(
    from_: Annotated[Origin, Option("--from", help="Program or format that the request log is from.")],
    file: Annotated[str | None, Option(metavar="PATH", help="The log, if it is a file.")] = None,
    topic: Annotated[str | None, Option(metavar="NAME", help="The log, if it is a topic.")] = None,
    output: Annotated[Path, Option(metavar="PATH", help="The new configuration file.")] = OUTPUT,
    json: JsonOption = False,
) -> None:
    """Write a configuration to begin with.

    Reads no log. It also writes the file that makes a proxy, or LiteLLM, write this log, as gatelock-... or
    gatelock_... in the same folder. Existing files are never overwritten.

    Example: gatelock init --from nginx --file /var/log/nginx/requests.log
    """
    if file is not None and topic is not None:
        raise usage_error("--file and --topic exclude each other")
    template = TEMPLATES[from_]
    template_text = configuration(template.source, file, topic, template.policies)
    written = {output: template_text}
    if template.program is not None:
        written[output.with_name(template.written_as)] = shipped(template.program)
    existing = [str(path) for path in written if path.exists()]
    if existing:
        raise usage_error(f"{', '.join(existing)}: exists, and is not overwritten; write --output PATH")
    for path, text in written.items():
        try:
            with path.open("x") as new:  # also refuses a link that leads nowhere
                new.write(text)
        except OSError as error:
            raise usage_error(f"{path}: {error.strerror}") from error
    parts = "routes and limits" if "routes = [" in template_text else "limits"
    sentence = f"{output}: written; correct its {parts}, then run `gatelock check`"
    places = [f"{path}: {template.place}" for path in list(written)[1:]]
    outcome("\n".join([sentence, *places]), {"files": [str(path) for path in written]}, as_json=json)


def configuration(
    source: str, file: str | None = None, topic: str | None = None, policies: str = "policies.toml"
) -> str:
    """The text of a configuration with this source, which reads `file` or `topic` where one is given."""
    text = shipped(source)
    if file is not None or topic is not None:
        key, value = ("file", file) if file is not None else ("topic", topic)
        text = FILE_LINE.sub(lambda line: f"{key}{line[1]}= {_quoted(str(value))}", text, count=1)
    parts = (shipped("begin.toml"), text, shipped(policies))
    return "\n".join(part.strip() + "\n" for part in parts)


def shipped(name: str) -> str:
    """The text of a file of `deploy`: next to the package in a source tree, inside it in a wheel."""
    folder = PACKAGE / "_deploy"
    return ((folder if folder.is_dir() else PACKAGE.parent / "deploy") / name).read_text()


def _quoted(text: str) -> str:

    if not text.isprintable() or '"' in text or "\\" in text:
        raise usage_error(f"{quote(text)}: write this name into the file by hand")
    return f'"{text}"'
