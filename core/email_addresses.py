"""Which text is an e-mail address: a plain one (RFC 5321), of a domain on the internet, as Stripe asks for."""

import re
from typing import Final

from core.errors import InvalidRequest

_LENGTH_MAX: Final = 254
_LOCAL_LENGTH_MAX: Final = 64
_LOCAL: Final = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")


def email_problem(text: str) -> str | None:
    """Why the text is no e-mail address, in words; None if it is one."""
    local, at, domain = text.partition("@")
    labels = domain.split(".")
    checks = (
        (len(text) <= _LENGTH_MAX, f"it is longer than {_LENGTH_MAX} characters"),
        (text.isascii(), "it has letters beyond ASCII; write its domain in punycode"),
        (not re.search(r"[\s\x00-\x1f\x7f]", text), "it has a space or a control character"),
        (at and "@" not in domain, "it needs exactly one @"),
        (len(local) <= _LOCAL_LENGTH_MAX, f"the part before the @ is longer than {_LOCAL_LENGTH_MAX} characters"),
        (_LOCAL.fullmatch(local), "the part before the @ is empty, or has a dot or a character in a wrong place"),
        (len(labels) > 1, f"its domain {domain!r} has no dot"),
        (all(map(_LABEL.fullmatch, labels)), f"{domain!r} is no domain"),
        (re.search("[A-Za-z]", labels[-1]) and len(labels[-1]) > 1, f"its domain {domain!r} has no valid ending"),
    )
    return next((problem for holds, problem in checks if not holds), None)


def require_email(text: str, *, param: str) -> None:
    """Raises InvalidRequest for what is no e-mail address."""
    if (problem := email_problem(text)) is not None:
        raise InvalidRequest(
            f"{param}: {text!r} is no e-mail address: {problem}. Write a plain one such as owner@example.com.",
            code="invalid_email_address",
            param=param,
        )
