"""Facts about callers as they are written: their checks, and files of them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from analyzer.acting.parameters import Fault
from analyzer.callers.caller_answers import COLUMNS
from analyzer.config.values import NAME, zone_cure
from analyzer.judging.caller_limits import Profile
from analyzer.kernel.logs import printable
from analyzer.plan.mapping import TENANT
from analyzer.plan.value_rules import is_anchor
from analyzer.plan.windows import is_zone


def read_file(file: Path) -> tuple[list[str], Mapping[str, Profile]]:
    """Returns the columns that a CSV file states, without that of the callers, and the facts by caller.

    Raises Fault for the first line that is wrong, with its number.
    """
    profiles: dict[str, Profile] = {}
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines, strict=True)
            columns = list(reader.fieldnames or ())
            _require_columns(file, columns)
            for row in reader:
                number = reader.line_num
                if None in row or None in row.values():
                    raise Fault("file", f"{file}, line {number}: another number of columns than the first")
                caller = row["caller"].strip()
                facts = Profile(*((row.get(name) or "").strip() for name in Profile._fields))
                _require_new(caller, profiles, f"{file}, line {number}")
                profiles[caller] = _checked(caller, facts, f"{file}, line {number}")
    except OSError as error:
        raise Fault("file", f"{file}: {error.strerror}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise Fault("file", f"{file}, line {reader.line_num}: {error}") from error
    return [name for name in columns if name != "caller"], profiles


def _require_columns(file: Path, columns: Sequence[str]) -> None:
    unknown = [name for name in columns if name not in COLUMNS]
    if "caller" not in columns or len(columns) < 2 or unknown:
        raise Fault("file", f"{file}: the first line must name the columns: {','.join(COLUMNS)}")


def _require_new(caller: str, profiles: Mapping[str, Profile], where: str) -> None:
    if ":" not in caller.strip(":"):
        raise Fault("file", f"{where}: {caller!r} has no kind of name in front, as in api_key:acme")
    if caller in profiles:
        raise Fault("file", f"{where}: {caller} is in the file twice")


def _checked(caller: str, profile: Profile, where: str) -> Profile:
    try:
        return checked_profile(caller, profile)
    except ValueError as error:
        raise Fault("file", printable(f"{where}: {error}")) from error


def checked_profile(caller: str, profile: Profile) -> Profile:
    """Returns the profile of a caller or a tenant.

    Raises ValueError if a value cannot be what it stands for.
    """
    if profile.tenant and caller.startswith(TENANT):
        raise ValueError("a tenant is in no tenant: give its callers one")
    if profile.plan and not NAME.fullmatch(profile.plan):
        raise ValueError(f"{profile.plan!r} is not the name of a plan")
    if len(profile.tenant.encode()) > 256 or profile.tenant != printable(profile.tenant):
        raise ValueError(f"{profile.tenant!r} is not the name of a tenant")
    if profile.zone and not is_zone(profile.zone):
        raise ValueError(f"{profile.zone!r} is not a time zone: {zone_cure(profile.zone)}")
    if profile.anchor and not is_anchor(profile.anchor):
        raise ValueError(f"{profile.anchor!r} is not a day: write it as 2026-01-31")
    return profile
