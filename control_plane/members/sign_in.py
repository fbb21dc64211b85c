"""Signs a person in: e-mail address, password and, where it is set up, the code of the second factor.

One answer and one duration for an unknown person, a wrong password and a wrong code. Tries are counted in Postgres, so
several web processes count together. Fails closed: without Postgres no person signs in.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from sqlalchemy import case, delete
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col, select

from control_plane.audit import service as audit
from control_plane.members import sessions
from control_plane.members.models import SignInTries, User
from control_plane.members.passwords import NO_PASSWORD, is_password
from control_plane.members.second_factor import SecondFactors
from control_plane.settings import ConsoleSettings
from core import clock
from core.errors import TooManyRequests, Unauthenticated

WRONG: Final = "E-mail address, password or code is wrong. Codes change every 30 seconds and count once."


def check_tries(session: Session, subjects: Sequence[str], rules: ConsoleSettings) -> None:
    """Raises TooManyRequests where one of the subjects, an e-mail address or an IP address, has failed too often."""
    window = timedelta(seconds=rules.sign_in_window_s)
    recent = select(SignInTries).where(
        col(SignInTries.subject).in_(subjects),
        col(SignInTries.failures) >= rules.sign_in_failures_max,
        col(SignInTries.since) > clock.now() - window,
    )
    if (locked := session.exec(recent).first()) is not None:
        wait_s = (locked.since + window - clock.now()).total_seconds()
        raise TooManyRequests(
            f"Too many failed sign-ins. Try again in {max(1, round(wait_s / 60))} min.",
            code="sign_in_locked",
            retry_after_s=wait_s,
        )


def count_failure(session: Session, subjects: Sequence[str], rules: ConsoleSettings) -> None:
    """Count a failed sign-in of each subject. The count begins again with each window."""
    now = clock.now()
    oldest = now - timedelta(seconds=rules.sign_in_window_s)
    for subject in sorted(subjects):  # in one order, so that no two wait for each other
        new = insert(SignInTries).values(subject=subject, failures=1, since=now)
        is_old = col(SignInTries.since) <= oldest
        session.execute(
            new.on_conflict_do_update(
                index_elements=[col(SignInTries.subject)],
                set_={
                    "failures": case((is_old, 1), else_=col(SignInTries.failures) + 1),
                    "since": case((is_old, now), else_=col(SignInTries.since)),
                },
            )
        )


def sign_in(session: Session, factors: SecondFactors, *, email: str, password: str, code: str, address: str) -> User:
    """The person, whose second factor's code is used up. Raises Unauthenticated."""
    user = session.exec(select(User).where(User.email == email.strip().lower()).with_for_update()).first()
    known = is_password(password, NO_PASSWORD if user is None else user.password_hash)
    if user is None or not known or (user.totp_sealed is not None and not factors.accepts(user, code)):
        raise Unauthenticated(WRONG, code="sign_in_failed")
    session.execute(delete(SignInTries).where(col(SignInTries.subject) == user.email))
    audit.record(session, actor=user.id, action="session.started", target=user.id, details={"address": address})
    return user


def remove_old_tries(session: Session, rules: ConsoleSettings) -> None:
    """Delete counts whose window is over."""
    oldest = clock.now() - timedelta(seconds=rules.sign_in_window_s)
    session.execute(delete(SignInTries).where(col(SignInTries.since) <= oldest))


def confirm(session: Session, session_id: str, user_id: str, password: str, rules: ConsoleSettings) -> bool:
    """Whether this is the person's password; from then on the session counts as confirmed for a while. A wrong one
    counts as a failed sign-in. Raises TooManyRequests.
    """
    user = session.exec(select(User).where(User.id == user_id)).one()
    check_tries(session, [user.email], rules)
    if not is_password(password, user.password_hash):
        count_failure(session, [user.email], rules)
        return False
    sessions.change(session, session_id).confirmed_at = clock.now()
    return True
