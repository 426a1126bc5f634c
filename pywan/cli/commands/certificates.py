"""Owns the command that makes certificates for trying out."""

from __future__ import annotations

from pywan.base.files import given_path
from pywan.cli.commands.of_members import Values
from pywan.cli.grammar import Command
from pywan.cli.output import Result
from pywan.cli.session import Session
from pywan.cli.trial_certificates import ALWAYS, AUTHORITY, DAYS, make_certificates
from pywan.config.options import Option
from pywan.config.values import to_int, to_words
from pywan.errors import ConfigurationError

FOLDER = "certificates"
LONGEST_DAYS = 3650


def make(session: Session, values: Values) -> Result:
    sites = to_words(values["site"], "--site")
    if not sites:
        raise ConfigurationError("certificates make: --site names no site")
    days = to_int(values.get("days", DAYS), "--days", 1, LONGEST_DAYS)
    files = make_certificates(
        given_path(values.get("dir") or FOLDER).absolute(),
        sites,
        to_words(values.get("hosts", ""), "--hosts"),
        days=days,
        force=str(values.get("force", "false")).lower() == "true",
    )
    authority = files[AUTHORITY][0]
    lines = [f"Made {authority}, and for each site a certificate and a key. They end in {days} days."]
    for site in sites:
        certificate, key = files[site]
        lines += [
            "",
            f"Site {site}: before its locators, servers and commands start,",
            "  export PYWAN_SSL_ENABLED_COMPONENTS=all",
            f"  export PYWAN_SSL_TRUSTED_CERTIFICATES={authority}",
            f"  export PYWAN_SSL_CERTIFICATE={certificate}",
            f"  export PYWAN_SSL_KEY={key}",
        ]
    lines += [
        "",
        f"Who has {files[AUTHORITY][1]} can make certificates that every site believes: keep it where nobody else reads"
        " it, and take an authority of your own for anything but a trial.",
    ]
    made = {name: {"certificate": str(pair[0]), "key": str(pair[1])} for name, pair in files.items()}
    return Result(data={"files": made, "days": days}, lines=lines)


COMMANDS = (
    Command(
        "certificates make",
        "an authority and certificates, for trying encryption out",
        make,
        (
            Option("site", "the names of the sites, separated by commas", required=True),
            Option("hosts", f"names and addresses of their machines ({', '.join(ALWAYS)} are in it always)"),
            Option("dir", f"the folder for the files ({FOLDER})"),
            Option("days", f"how long they are valid ({DAYS})"),
            Option("force", "replace files that are there", flag=True),
        ),
        more="It needs the extra `pywan[certificates]`. Keys are for their owner alone (0600)",
    ),
)
