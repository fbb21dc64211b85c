"""Closes the last ways to add to what is final: usage, adjustments and resources of invoiced time, parts that
commit after their whole, events and credit without their money, numbers without a document, and an end of invoiced time
that goes back.

Revision: 2026_11_25_1010, after 2026_11_25_1000.
"""

import re
import runpy
from pathlib import Path

from alembic import op

revision = "2026_11_25_1010"
down_revision = "2026_11_25_1000"
branch_labels = None
depends_on = None

# A part that another transaction inserts before the whole commits would not see it, and commit after it. So parts share a
# lock of the whole's id, and the whole takes it alone: the other transaction ends first, or sees the whole.
PARTS = """
CREATE FUNCTION billing_lock_whole() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(NEW.id, 0));
    RETURN NEW;
END $$;
CREATE TRIGGER transfers_wait_for_parts BEFORE INSERT ON transfers FOR EACH ROW EXECUTE FUNCTION billing_lock_whole();
CREATE TRIGGER invoices_wait_for_parts BEFORE INSERT ON invoices FOR EACH ROW EXECUTE FUNCTION billing_lock_whole();
CREATE TRIGGER credit_notes_wait_for_parts BEFORE INSERT ON credit_notes FOR EACH ROW EXECUTE FUNCTION billing_lock_whole();

CREATE FUNCTION billing_share_wholes(wholes text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    whole text;
BEGIN
    FOR whole IN SELECT DISTINCT each FROM unnest(wholes) each ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock_shared(hashtextextended(whole, 0));
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION billing_refuse_final() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    final text;
BEGIN
    IF TG_TABLE_NAME = 'invoice_lines' THEN
        PERFORM billing_share_wholes(ARRAY(SELECT invoice_id FROM added));
        SELECT i.id INTO final FROM invoices i WHERE i.id IN (SELECT invoice_id FROM added) LIMIT 1;
    ELSE
        PERFORM billing_share_wholes(ARRAY(SELECT transfer_id FROM added));
        SELECT t.id INTO final FROM transfers t WHERE t.id IN (SELECT transfer_id FROM added) LIMIT 1;
    END IF;
    IF final IS NOT NULL THEN
        RAISE EXCEPTION 'INSERT into % refused: % is final', TG_TABLE_NAME, final USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION billing_refuse_part_of_final() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    final text;
BEGIN
    IF TG_TABLE_NAME = 'credit_note_tax_lines' THEN
        PERFORM billing_share_wholes(ARRAY(SELECT credit_note_id FROM added));
        SELECT n.id INTO final FROM credit_notes n WHERE n.id IN (SELECT credit_note_id FROM added) LIMIT 1;
    ELSE
        PERFORM billing_share_wholes(ARRAY(SELECT invoice_id FROM added));
        SELECT i.id INTO final FROM invoices i WHERE i.id IN (SELECT invoice_id FROM added) LIMIT 1;
    END IF;
    IF final IS NOT NULL THEN
        RAISE EXCEPTION 'INSERT into % refused: % is final', TG_TABLE_NAME, final USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
"""

# The time before a subscription's billed_until is invoiced. Its row is held, so no close overtakes what is written.
INVOICED_TIME = """
CREATE FUNCTION billing_refuse_invoiced_time() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    invoiced timestamptz;
    at timestamptz;
BEGIN
    SELECT billed_until INTO invoiced FROM subscriptions WHERE tenant_id = NEW.tenant_id FOR SHARE;
    CASE TG_TABLE_NAME
    WHEN 'usage_adjustments' THEN at := NEW.period_start;
    WHEN 'resource_hours' THEN at := NEW.counted_at;
    END CASE;
    IF at < invoiced THEN
        RAISE EXCEPTION 'INSERT into % refused: % is before %, which is invoiced', TG_TABLE_NAME, at, invoiced
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER usage_adjustments_not_invoiced BEFORE INSERT ON usage_adjustments
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_invoiced_time();
CREATE TRIGGER resource_hours_not_invoiced BEFORE INSERT ON resource_hours
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_invoiced_time();

-- Once a statement: recording inserts a hundred records at a time.
CREATE FUNCTION billing_refuse_invoiced_records() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    early record;
BEGIN
    PERFORM FROM subscriptions WHERE tenant_id IN (SELECT tenant_id FROM added) ORDER BY tenant_id FOR SHARE;
    SELECT a.request_id, coalesce(a.late_from, a.settled_at) AS at, s.billed_until INTO early
        FROM added a JOIN subscriptions s ON s.tenant_id = a.tenant_id
        WHERE coalesce(a.late_from, a.settled_at) < s.billed_until LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'INSERT of usage record % refused: % is before %, which is invoiced', early.request_id, early.at,
            early.billed_until USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER usage_records_not_invoiced AFTER INSERT ON usage_records REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_invoiced_records();

-- What is invoiced grows with time and never shrinks; a tenant leaves once.
CREATE FUNCTION billing_only_forwards() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.tenant_id <> OLD.tenant_id OR NEW.billed_until > clock_timestamp()
        OR (OLD.billed_until IS NOT NULL AND (NEW.billed_until IS NULL OR NEW.billed_until < OLD.billed_until))
        OR (OLD.ended_at IS NOT NULL AND NEW.ended_at IS NULL)
    THEN
        RAISE EXCEPTION 'UPDATE of the subscription of % refused: what is invoiced, and the end, move only forwards',
            OLD.tenant_id USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER subscriptions_only_forwards BEFORE UPDATE ON subscriptions
    FOR EACH ROW EXECUTE FUNCTION billing_only_forwards();

-- What a period leaves is written by the transaction that closes it: before it the period is open, after it closed.
CREATE FUNCTION billing_refuse_closed_period() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM subscriptions WHERE tenant_id = NEW.tenant_id AND billed_until >= NEW.period_end) THEN
        RAISE EXCEPTION 'INSERT into % refused: the time until %, which is invoiced, left something else', TG_TABLE_NAME,
            NEW.period_end USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER period_states_not_closed BEFORE INSERT ON period_states
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_closed_period();

CREATE FUNCTION billing_closes_period() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM subscriptions WHERE tenant_id = NEW.tenant_id AND billed_until = NEW.period_end) THEN
        RAISE EXCEPTION 'INSERT into % refused: % is not the end of the time of tenant % which is invoiced', TG_TABLE_NAME,
            NEW.period_end, NEW.tenant_id USING ERRCODE = 'restrict_violation';
    END IF;
    IF TG_TABLE_NAME = 'period_states' THEN
        RETURN NULL;
    END IF;
    IF EXISTS (
        SELECT FROM carried_periods WHERE tenant_id = NEW.tenant_id AND period_start < NEW.period_end
            AND NEW.period_start < period_end AND NOT (TG_TABLE_NAME = 'carried_periods' AND period_end = NEW.period_end)
    ) OR EXISTS (
        SELECT FROM invoices WHERE tenant_id = NEW.tenant_id AND period_start < NEW.period_end
            AND NEW.period_start < period_end AND NOT (TG_TABLE_NAME = 'invoices' AND period_end = NEW.period_end)
    ) THEN
        RAISE EXCEPTION 'INSERT into % refused: another period of tenant % has a part of % to %, which is invoiced',
            TG_TABLE_NAME, NEW.tenant_id, NEW.period_start, NEW.period_end USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER period_states_close AFTER INSERT ON period_states DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_closes_period();
CREATE CONSTRAINT TRIGGER carried_periods_close AFTER INSERT ON carried_periods DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_closes_period();
CREATE CONSTRAINT TRIGGER invoices_reach_billed_until AFTER INSERT ON invoices DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_closes_period();
"""

# Each cause names a transfer of its kind, which moves exactly its amount.
MONEY = """
CREATE FUNCTION billing_leg(transfer text, account text, tenant text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum(e.amount_nanos), 0)::bigint FROM entries e JOIN accounts a ON a.id = e.account_id
    WHERE e.transfer_id = transfer AND a.kind = account AND a.tenant_id IS NOT DISTINCT FROM tenant
$$;

CREATE FUNCTION billing_moves(transfer text, transfer_kind text, account text, tenant text, nanos bigint)
    RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT FROM transfers WHERE id = transfer AND kind = transfer_kind)
        AND billing_leg(transfer, account, tenant) = nanos
$$;

CREATE FUNCTION billing_usage_change_is_posted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    nanos bigint := NEW.amount_nanos;
    kind text := 'adjustment';
BEGIN
    IF TG_TABLE_NAME = 'usage_amendments' THEN
        kind := 'amendment';
        IF NEW.part = 'reversal' THEN
            nanos := - nanos;
        END IF;
    END IF;
    IF NOT billing_moves(NEW.transfer_id, kind, 'usage_unbilled', NEW.tenant_id, nanos) THEN
        RAISE EXCEPTION 'transfer % does not move the % of an % of tenant %', NEW.transfer_id, nanos, kind, NEW.tenant_id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER usage_amendments_posted BEFORE INSERT ON usage_amendments
    FOR EACH ROW EXECUTE FUNCTION billing_usage_change_is_posted();
CREATE TRIGGER usage_adjustments_posted BEFORE INSERT ON usage_adjustments
    FOR EACH ROW EXECUTE FUNCTION billing_usage_change_is_posted();

-- Credit that names an invoice is what the invoice says: promotional credit its parts, paid credit its payments.
CREATE FUNCTION billing_check_invoice_credit(invoice text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    promotional numeric;
    paid numeric;
BEGIN
    SELECT coalesce(sum(e.amount_nanos) FILTER (WHERE l.kind = 'promotional'), 0),
        coalesce(sum(e.amount_nanos) FILTER (WHERE l.kind = 'paid'), 0) INTO promotional, paid
        FROM credit_entries e JOIN credit_lots l ON l.id = e.lot_id WHERE e.invoice_id = invoice AND e.kind = 'burn';
    IF promotional <> - (SELECT coalesce(sum(amount_nanos), 0) FROM invoice_credits WHERE invoice_id = invoice)
        OR paid <> - 10000000 * (
            SELECT coalesce(sum(amount_cents), 0) FROM invoice_events
            WHERE invoice_id = invoice AND source = 'credits' AND transfer_id IS NULL
        )
    THEN
        RAISE EXCEPTION 'credit of % and % is not what invoice % has', promotional, paid, invoice
            USING ERRCODE = 'check_violation';
    END IF;
END $$;
CREATE FUNCTION billing_credit_fits_invoice() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM invoices WHERE id = NEW.invoice_id) THEN
        PERFORM billing_check_invoice_credit(NEW.invoice_id);
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER credit_entries_fit_invoice AFTER INSERT ON credit_entries DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.invoice_id IS NOT NULL) EXECUTE FUNCTION billing_credit_fits_invoice();

CREATE FUNCTION billing_invoice_event_is_posted() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    tenant text := (SELECT tenant_id FROM invoices WHERE id = NEW.invoice_id);
    nanos bigint := NEW.amount_cents * 10000000;
    by_credits bigint;
    by_balance bigint;
    posted boolean := true;
BEGIN
    CASE NEW.kind
    WHEN 'payment' THEN
        IF NEW.source = 'credits' AND NEW.transfer_id IS NULL THEN
            PERFORM billing_check_invoice_credit(NEW.invoice_id);
        ELSE
            posted := billing_moves(NEW.transfer_id, CASE NEW.source WHEN 'balance' THEN 'balance' ELSE 'payment' END,
                    'receivable', tenant, - nanos)
                AND (NEW.source = 'balance'
                    OR billing_leg(NEW.transfer_id, 'customer_balance', tenant) = - NEW.surplus_cents * 10000000);
        END IF;
    WHEN 'void' THEN
        -- What credit had paid is taken back beside what is due, and what the balance had paid is given back.
        SELECT coalesce(sum(amount_cents) FILTER (WHERE source = 'credits'), 0) * 10000000,
            coalesce(sum(amount_cents) FILTER (WHERE source = 'balance'), 0) * 10000000 INTO by_credits, by_balance
            FROM invoice_events WHERE invoice_id = NEW.invoice_id AND kind = 'payment';
        posted := billing_moves(NEW.transfer_id, 'void', 'receivable', tenant, - nanos - by_credits)
            AND billing_leg(NEW.transfer_id, 'customer_balance', tenant) = - by_balance;
    WHEN 'uncollectible' THEN
        posted := billing_moves(NEW.transfer_id, 'write_off', 'receivable', tenant, - nanos);
    WHEN 'recovered' THEN
        posted := billing_moves(NEW.transfer_id, 'recovery', 'receivable', tenant, nanos);
    ELSE
    END CASE;
    IF posted IS NOT TRUE THEN
        RAISE EXCEPTION 'transfer % does not move the % cents of % of invoice %', NEW.transfer_id, NEW.amount_cents,
            NEW.kind, NEW.invoice_id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER invoice_events_are_posted AFTER INSERT ON invoice_events DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_invoice_event_is_posted();

CREATE FUNCTION billing_credit_note_is_posted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (
        billing_moves(NEW.transfer_id, 'credit_note', 'revenue', NULL, NEW.net_cents * 10000000)
        AND billing_leg(NEW.transfer_id, 'tax_payable', NULL) = NEW.tax_cents * 10000000
        AND billing_leg(NEW.transfer_id, 'receivable', NEW.tenant_id) + billing_leg(NEW.transfer_id, 'bad_debt', NULL)
            = - NEW.due_cents * 10000000
        AND billing_leg(NEW.transfer_id, 'customer_balance', NEW.tenant_id) = - NEW.balance_cents * 10000000
    ) THEN
        RAISE EXCEPTION 'transfer % does not move the % cents of credit note %', NEW.transfer_id, NEW.total_cents, NEW.id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER credit_notes_are_posted AFTER INSERT ON credit_notes DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_credit_note_is_posted();

-- A number without a document would be a gap.
CREATE FUNCTION billing_number_is_used() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM invoices WHERE NEW.kind = 'invoice' AND id = NEW.document_id AND tenant_id = NEW.tenant_id
        UNION ALL
        SELECT FROM credit_notes WHERE NEW.kind = 'credit_note' AND id = NEW.document_id AND tenant_id = NEW.tenant_id
    ) THEN
        RAISE EXCEPTION 'document % names no invoice or credit note of tenant %', NEW.document_id, NEW.tenant_id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER documents_are_used AFTER INSERT ON documents DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION billing_number_is_used();
"""

# A transaction may be old when it writes: the past is what was a minute before the insert, the longest that one of
# Tenora's transactions may take, or before the transaction began.
PAST = """
CREATE FUNCTION billing_past() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT greatest(now(), clock_timestamp() - interval '1 min')
$$;
CREATE OR REPLACE FUNCTION billing_refuse_past() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    others boolean;
BEGIN
    CASE TG_TABLE_NAME
    WHEN 'price_versions' THEN
        others := EXISTS (SELECT FROM price_versions WHERE plan_id = NEW.plan_id);
    WHEN 'plan_assignments' THEN
        others := EXISTS (SELECT FROM plan_assignments WHERE tenant_id = NEW.tenant_id);
    END CASE;
    IF others AND NEW.effective_from < billing_past() THEN
        RAISE EXCEPTION 'INSERT into % refused: % is in the past', TG_TABLE_NAME, NEW.effective_from
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE FUNCTION billing_refuse_past_terms() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    begins timestamptz;
BEGIN
    IF TG_TABLE_NAME = 'discount_ends' THEN
        begins := NEW.ended_at;
    ELSE
        begins := NEW.effective_from;
    END IF;
    IF TG_TABLE_NAME = 'tenant_calendars' THEN
        IF NOT EXISTS (SELECT FROM tenant_calendars WHERE tenant_id = NEW.tenant_id)
            AND NOT EXISTS (SELECT FROM subscriptions WHERE tenant_id = NEW.tenant_id AND billed_until IS NOT NULL)
        THEN
            RETURN NEW;
        END IF;
    END IF;
    IF begins < billing_past() THEN
        RAISE EXCEPTION 'INSERT into % refused: % is in the past', TG_TABLE_NAME, begins
            USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER discount_ends_not_past BEFORE INSERT ON discount_ends
    FOR EACH ROW EXECUTE FUNCTION billing_refuse_past_terms();
"""

_TRIGGERS = (
    ("transfers_wait_for_parts", "transfers"), ("invoices_wait_for_parts", "invoices"),
    ("credit_notes_wait_for_parts", "credit_notes"), ("discount_ends_not_past", "discount_ends"),
)  # fmt: skip
_FUNCTIONS = (
    "billing_lock_whole", "billing_refuse_invoiced_time", "billing_refuse_invoiced_records", "billing_only_forwards",
    "billing_refuse_closed_period", "billing_closes_period", "billing_usage_change_is_posted",
    "billing_credit_fits_invoice", "billing_invoice_event_is_posted", "billing_credit_note_is_posted",
    "billing_number_is_used", "billing_share_wholes(text[])", "billing_check_invoice_credit(text)", "billing_moves(text, text, text, text, bigint)",
    "billing_leg(text, text, text)",
)  # fmt: skip
_REPLACED = (
    ("2026_11_24_1000_usage_written_once.py", "billing_refuse_final"),
    ("2026_11_24_1120_documents.py", "billing_refuse_part_of_final"),
    ("2026_11_24_1000_usage_written_once.py", "billing_refuse_past"),
    ("2026_11_24_1110_terms.py", "billing_refuse_past_terms"),
)


def upgrade() -> None:
    for statements in (PARTS, INVOICED_TIME, MONEY, PAST):
        op.execute(statements)


def downgrade() -> None:
    for trigger, table in _TRIGGERS:
        op.execute(f"DROP TRIGGER {trigger} ON {table}")
    for function in _FUNCTIONS:
        op.execute(f"DROP FUNCTION {function} CASCADE")  # with the triggers that call it
    for file, function in _REPLACED:
        op.execute(_as_before(file, function))
    op.execute("DROP FUNCTION billing_past()")


def _as_before(file: str, function: str) -> str:
    """The statement with which an earlier revision made a function."""
    guards = runpy.run_path(str(Path(__file__).with_name(file)))["GUARDS"]
    found = re.search(rf"CREATE (FUNCTION {function}\(\).*?\nEND \$\$;)", guards, re.DOTALL)
    assert found is not None
    return f"CREATE OR REPLACE {found[1]}"
