"""A document that was changed past the database's guards is found by name, with all that follow it."""

import subprocess

import pytest
import sqlalchemy as sa
from sqlmodel import Session

from billing.invoices.verification import verify
from billing.invoicing import closing
from billing.invoicing.credit_notes import issue_credit_note
from core.db import unit_of_work
from tests.fixtures import fork_server


@pytest.fixture
def documents(stage) -> list[str]:
    """The ids of five documents in the order of their chain: invoices, and a credit note as the third."""
    tenant = stage.tenant()
    ids = []
    for number in range(4):
        stage.bill(stage.event(tenant, output_tokens=100_000))
        ids.append(closing.close_tenant(stage.engine, tenant, stage.now(), least_cents=0).id)
        if number == 1:
            with unit_of_work(stage.engine) as session:
                note = issue_credit_note(session, invoice_id=ids[0], amount_cents=2, to="amount_due", reason="agreed")
            ids.append(note.id)
    return ids


def as_superuser(session: Session, sql: str, **parameters) -> None:
    session.connection().exec_driver_sql("SET LOCAL session_replication_role = replica")
    session.connection().execute(sa.text(sql), parameters)


def found(stage, sql: str, document_id: str) -> dict[str, str]:
    """What is wrong after a change past the database's guards, which is taken back."""
    with Session(stage.engine) as session:
        as_superuser(session, sql, i=document_id)
        return {finding.document_id: finding.problem for finding in verify(session).findings}


@pytest.mark.scenario(110)
def test_a_changed_byte_names_its_document_and_all_that_follow(stage, documents):
    with unit_of_work(stage.engine) as session:
        verified = verify(session)
    assert (verified.documents, verified.findings) == (5, [])
    assert verified.head_sha256 == stage.value("SELECT sha256 FROM documents WHERE position = 5")
    for place, sql in (
        (1, "UPDATE invoice_lines SET adapter_name = 'x' WHERE invoice_id = :i AND position = 2"),
        (1, "DELETE FROM invoice_lines WHERE invoice_id = :i AND position = 1"),
        (2, "UPDATE credit_notes SET reason = 'agreee' WHERE id = :i"),
        (3, "UPDATE documents SET number = 9 WHERE document_id = :i"),
    ):
        problems = found(stage, sql, documents[place])
        assert list(problems) == documents[place:], sql
        assert problems.pop(documents[place]) in {"changed", "gap"}
        assert set(problems.values()) <= {"follows", "gap"}
    new_hash = "UPDATE documents SET content_sha256 = repeat('a', 64) WHERE document_id = :i"
    assert found(stage, new_hash, documents[1])[documents[1]] == "changed", "by the chain"
    assert found(stage, "DELETE FROM documents WHERE document_id = :i", documents[1]) == {
        documents[1]: "unnumbered", documents[2]: "gap", documents[3]: "gap", documents[4]: "follows",
    }  # fmt: skip
    forged = "UPDATE invoice_events SET status = 'paid', amount_due_cents = 0 WHERE invoice_id = :i AND seq = 2"
    assert found(stage, forged, documents[4]) == {documents[4]: "state"}


@pytest.mark.scenario(110)
def test_the_command_names_the_documents_and_fails(stage, documents, postgres_settings):
    def run() -> subprocess.CompletedProcess[str]:
        environment = {"TENORA_POSTGRES_DSN": postgres_settings.postgres_dsn, "PATH": ""}
        return fork_server.run("billing", "verify", env=environment)

    good = run()
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.startswith("5 documents verified")
    with unit_of_work(stage.engine) as session:
        as_superuser(session, "UPDATE invoice_lines SET tier = 1 WHERE invoice_id = :i", i=documents[0])
    bad = run()
    assert bad.returncode == 1
    assert [line.split()[1] for line in bad.stdout.splitlines()] == [f"{each}:" for each in documents]
    assert "5 of 5" in bad.stderr
