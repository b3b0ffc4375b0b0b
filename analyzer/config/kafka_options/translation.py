"""`[kafka]` in any client's words, turned into ours. No value is ever repeated: some are secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from analyzer.config.diagnostics.faults import KeyFault, OptionFault
from analyzer.config.diagnostics.toml_positions import KeyPath
from analyzer.config.kafka_options.jaas import MODULE, login
from analyzer.config.kafka_options.names import (
    BY_PLAIN_NAME,
    JAAS,
    KEYS,
    KNOWN,
    MECHANISMS,
    OPTIONS,
    PROTOCOLS,
    REFUSED,
    STORES,
    ours,
    plainly,
)
from analyzer.config.values import quoted

JAVA_STORES = (".jks", ".p12", ".pfx", ".keystore", ".truststore")


class TranslatedOptions(NamedTuple):
    """A table in our words, and what is wrong with the one that was given."""

    table: dict[str, Any]
    complaints: list[KeyFault]


def respelt(given: Mapping[str, Any]) -> TranslatedOptions:
    """`[kafka]` in our words. What has no name that is known stays as it is."""
    table: dict[str, Any] = {}
    options: dict[str, Any] = {}
    complaints: list[KeyFault] = []
    said: dict[str, tuple[KeyPath, Any]] = {}  # by whom, and what

    def put(path: KeyPath, name: str, value: Any) -> None:
        first, other = said.setdefault(name, (path, value))
        if other != value:
            what = f"says something else than {dotted(first)}, which is the same option"
            complaints.append(KeyFault(("kafka", *path), what, "keep one of the two"))
        elif name in OPTIONS:
            options[name] = value
        elif name != MODULE:
            table[name] = value

    for path, value in leaves(given):
        try:
            for name, meant in pairs(path, value):
                if name in KEYS or name in OPTIONS or name == MODULE:
                    put(path, name, meant)
                else:
                    (options if path[0] == "options" else table)[name] = meant
        except OptionFault as wrong:
            complaints.append(KeyFault(("kafka", *path), *wrong.args))
    complaints += _two_logins(said)
    if options or "options" in given:
        table["options"] = options if isinstance(given.get("options", {}), dict) else given["options"]
    return TranslatedOptions(table, complaints)


def _two_logins(said: Mapping[str, tuple[KeyPath, Any]]) -> Iterator[KeyFault]:
    """Java names the way of logging in twice, too."""
    if MODULE in said and "sasl_mechanism" in said:
        (path, module), (other, mechanism) = said[MODULE], said["sasl_mechanism"]
        if str(mechanism).startswith("SCRAM") != (module == "ScramLoginModule"):
            what = f"{module} is not for the mechanism in {dotted(other)}"
            yield KeyFault(
                ("kafka", *path), what, "ScramLoginModule is for SCRAM, PlainLoginModule for PLAIN"
            )


def leaves(given: Mapping[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value with its path: a dotted key without quotation marks is a table to TOML."""
    for key, value in given.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*at, key))
        elif (*at, key) != ("options",):
            yield (*at, key), value


def pairs(path: tuple[str, ...], value: Any) -> Iterator[tuple[str, Any]]:
    """Our names and values for what is written at `path`. Raises Wrong."""
    plain = plainly(path[1:] if path[0] == "options" and len(path) > 1 else path)
    known = BY_PLAIN_NAME.get(plain)
    if known == JAAS:
        yield from login(value)
    elif known in STORES:
        if str(value).upper() != "PEM":
            raise OptionFault("is not PEM, which is all that is read here", TO_PEM)
    elif known is not None:
        raise OptionFault(*REFUSED[known])
    elif plain in KNOWN:
        yield ours(path), converted(KNOWN[plain], plain, value)
    else:
        yield dotted(path[1:] if path[0] == "options" and len(path) > 1 else path), value


TO_PEM = (
    "turn it into PEM: keytool -importkeystore -srckeystore STORE -destkeystore s.p12 -deststoretype pkcs12; "
    "openssl pkcs12 -in s.p12 -out s.pem"
)


def converted(name: str, plain: str, value: Any) -> Any:
    """A value as we write it. What makes no sense stays as it is: the key says so. Raises Wrong."""
    if not isinstance(value, str):
        return f"{value}ms" if plain == "session_timeout_ms" else value
    text = value.strip()
    if plain == "session_timeout_ms":
        return f"{text}ms" if text.isdecimal() else value
    if name in ("security_protocol", "sasl_mechanism"):
        return text.upper() if text.upper() in (*PROTOCOLS, *MECHANISMS) else value
    if plain == "ssl_endpoint_identification_algorithm":
        return text.lower() == "https"
    if name in ("ssl_cafile", "ssl_certfile") and text.lower().endswith(JAVA_STORES):
        raise OptionFault("is a store of Java's, and PEM is all that is read here", TO_PEM)
    return option(name, text) if name in OPTIONS else value


def option(name: str, text: str) -> Any:
    """What a properties file or the environment can only give as text. Raises Wrong."""
    match OPTIONS[name]:
        case "whole":
            if not re.fullmatch(r"-?\d+", text):
                raise OptionFault(f"{quoted(text)} is no whole number", "write digits")
            return int(text)
        case "yes-no":
            if text.lower() not in ("true", "false"):
                raise OptionFault(f"{quoted(text)} is neither true nor false", "write true or false")
            return text.lower() == "true"
    return text


def dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))
