"""`[kafka]` in the option names of any client, translated to its keys.

Faults never repeat a value that may be secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from analyzer.config.diagnostics.faults import KeyFault, OptionFault
from analyzer.config.diagnostics.toml_positions import KeyPath
from analyzer.config.kafka_options.jaas import LOGIN_MODULE, parse_login
from analyzer.config.kafka_options.names import (
    JAAS,
    KEYS,
    OPTIONS,
    OUR_NAMES,
    SPECIAL,
    STORE_TYPES,
    UNSUPPORTED,
    UPPER_CASE_WORDS,
    normalized,
    without_options,
)
from analyzer.kernel.refused_values import quote

JAVA_STORES = (".jks", ".p12", ".pfx", ".keystore", ".truststore")
TO_PEM = (
    "convert it: keytool -importkeystore -srckeystore STORE -destkeystore s.p12 -deststoretype pkcs12; "
    "openssl pkcs12 -in s.p12 -out s.pem"
)


class TranslatedOptions(NamedTuple):
    """`[kafka]` with our names, and the faults of the table that was given."""

    table: dict[str, Any]
    faults: list[KeyFault]


class GivenOption(NamedTuple):
    """An option that the table sets: its path there, and its value."""

    path: KeyPath
    value: Any


def translate(section: Mapping[str, Any]) -> TranslatedOptions:
    """`[kafka]` with our names. Options with unknown names are left as they are."""
    table: dict[str, Any] = {}
    options: dict[str, Any] = {}
    faults: list[KeyFault] = []
    first: dict[str, GivenOption] = {}  # by our name

    def put(path: KeyPath, name: str, value: Any) -> None:
        earlier = first.setdefault(name, GivenOption(path, value))
        if earlier.value != value:
            problem = f"differs from {dotted(earlier.path)}, which is the same option"
            faults.append(KeyFault(("kafka", *path), problem, "remove one of the two"))
        elif name in OPTIONS:
            options[name] = value
        elif name != LOGIN_MODULE:
            table[name] = value

    for path, value in flattened(section):
        try:
            for name, translated in option_settings(path, value):
                if name in KEYS or name in OPTIONS or name == LOGIN_MODULE:
                    put(path, name, translated)
                else:
                    (options if path[0] == "options" else table)[name] = translated
        except OptionFault as fault:
            faults.append(KeyFault(("kafka", *path), *fault.args))
    faults += _contradicting_logins(first)
    if options or "options" in section:
        table["options"] = options if isinstance(section.get("options", {}), dict) else section["options"]
    return TranslatedOptions(table, faults)


def _contradicting_logins(first: Mapping[str, GivenOption]) -> Iterator[KeyFault]:
    """Java names the mechanism twice: as an option, and by the class in the login line."""
    if LOGIN_MODULE in first and "sasl_mechanism" in first:
        login, mechanism = first[LOGIN_MODULE], first["sasl_mechanism"]
        if str(mechanism.value).startswith("SCRAM") != (login.value == "ScramLoginModule"):
            problem = f"{login.value} does not fit the mechanism in {dotted(mechanism.path)}"
            cure = "use ScramLoginModule for SCRAM, PlainLoginModule for PLAIN"
            yield KeyFault(("kafka", *login.path), problem, cure)


def flattened(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value with its path. TOML makes tables of a dotted key that is not in quotation marks."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from flattened(value, (*path, key))
        elif (*path, key) != ("options",):
            yield (*path, key), value


def option_settings(path: tuple[str, ...], value: Any) -> Iterator[tuple[str, Any]]:
    """Our names and values for the option at `path`. Raises OptionFault."""
    parts = without_options(path)
    name = normalized(parts)
    special = SPECIAL.get(name)
    if special == JAAS:
        yield from parse_login(value)
    elif special in STORE_TYPES:
        if str(value).upper() != "PEM":
            raise OptionFault("must be PEM, the only format that is supported", TO_PEM)
    elif special is not None:
        raise OptionFault(*UNSUPPORTED[special])
    elif name in OUR_NAMES:
        yield OUR_NAMES[name], converted(OUR_NAMES[name], name, value)
    else:
        yield dotted(tuple(parts)), value


def converted(our_name: str, name: str, value: Any) -> Any:
    """The value as our key takes it. Values that cannot be converted are left to the check of the key.

    `name` is the normalized name in the file. Raises OptionFault.
    """
    if not isinstance(value, str):
        return f"{value}ms" if name == "session_timeout_ms" else value
    text = value.strip()
    if name == "session_timeout_ms":
        return f"{text}ms" if text.isdecimal() else value
    if our_name in ("security_protocol", "sasl_mechanism"):
        return text.upper() if text.upper() in UPPER_CASE_WORDS else value
    if name == "ssl_endpoint_identification_algorithm":
        return text.lower() == "https"
    if our_name in ("ssl_cafile", "ssl_certfile") and text.lower().endswith(JAVA_STORES):
        raise OptionFault("is a Java key store; only PEM files are supported", TO_PEM)
    return parse_option(our_name, text) if our_name in OPTIONS else value


def parse_option(name: str, text: str) -> Any:
    """The value of an option that a properties file or the environment gives as text. Raises OptionFault."""
    match OPTIONS[name]:
        case "whole":
            if not re.fullmatch(r"-?\d+", text):
                raise OptionFault(f"must be a whole number, not {quote(text)}", "write digits")
            return int(text)
        case "yes-no":
            if text.lower() not in ("true", "false"):
                raise OptionFault(f"must be true or false, not {quote(text)}", "write true or false")
            return text.lower() == "true"
    return text


def dotted(path: KeyPath) -> str:
    return ".".join(map(str, path))
