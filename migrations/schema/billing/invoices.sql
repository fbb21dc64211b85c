CREATE TABLE documents (
    position BIGSERIAL CONSTRAINT pk_documents PRIMARY KEY,
    kind varchar NOT NULL,
    number bigint NOT NULL,
    document_id varchar NOT NULL CONSTRAINT uq_documents_document_id UNIQUE,
    tenant_id varchar NOT NULL,
    content_format integer NOT NULL,
    content_sha256 varchar NOT NULL,
    previous_sha256 varchar NOT NULL,
    sha256 varchar NOT NULL,
    created_at timestamptz NOT NULL,
    CONSTRAINT uq_documents_kind_number UNIQUE (kind, number),
    CONSTRAINT ck_documents_kind_known CHECK (kind IN ('invoice', 'credit_note'))
);
CREATE INDEX ix_documents_tenant_id ON documents (tenant_id);

CREATE TABLE invoices (
    id varchar NOT NULL CONSTRAINT pk_invoices PRIMARY KEY,
    tenant_id varchar NOT NULL,
    period_start timestamptz NOT NULL,
    period_end timestamptz NOT NULL,
    currency varchar NOT NULL,
    total_cents bigint NOT NULL,
    amount_nanos bigint NOT NULL,
    created_at timestamptz NOT NULL,
    kind varchar NOT NULL,
    carried_nanos bigint NOT NULL,
    net_cents bigint NOT NULL,
    tax_cents bigint NOT NULL,
    seller jsonb,
    buyer jsonb,
    due_on DATE,
    CONSTRAINT uq_invoices_tenant_id_period_end UNIQUE (tenant_id, period_end),
    CONSTRAINT ck_invoices_kind_known CHECK (kind IN ('period', 'threshold', 'final', 'supplementary')),
    CONSTRAINT ck_invoices_period_has_length CHECK (period_start < period_end),
    CONSTRAINT ck_invoices_currency_known CHECK (currency = 'usd'),
    CONSTRAINT ck_invoices_total_is_net_and_tax CHECK (total_cents = net_cents + tax_cents),
    CONSTRAINT ck_invoices_less_than_a_cent_carried CHECK (carried_nanos BETWEEN -9999999 AND 9999999)
);

CREATE TABLE carried_periods (
    tenant_id varchar NOT NULL,
    period_end timestamptz NOT NULL,
    period_start timestamptz NOT NULL,
    amount_nanos bigint NOT NULL,
    lines jsonb NOT NULL,
    created_at timestamptz NOT NULL,
    invoice_id varchar
        CONSTRAINT uq_carried_periods_invoice_id UNIQUE CONSTRAINT fk_carried_periods_invoice_id_invoices REFERENCES invoices (id),
    billed_until timestamptz NOT NULL,
    CONSTRAINT pk_carried_periods PRIMARY KEY (tenant_id, period_end),
    CONSTRAINT ck_carried_periods_less_than_a_cent CHECK (
        invoice_id IS NOT NULL OR amount_nanos BETWEEN -9999999 AND 9999999 AND billed_until = period_end)
);

CREATE TABLE invoice_credits (
    invoice_id varchar NOT NULL
        CONSTRAINT fk_invoice_credits_invoice_id_invoices REFERENCES invoices (id) DEFERRABLE INITIALLY DEFERRED,
    position integer NOT NULL,
    lot_id varchar NOT NULL,
    amount_nanos bigint NOT NULL,
    amount_cents bigint NOT NULL,
    CONSTRAINT pk_invoice_credits PRIMARY KEY (invoice_id, position),
    CONSTRAINT ck_invoice_credits_uses_something CHECK (amount_nanos > 0 AND amount_cents >= 0)
);

CREATE TABLE invoice_lines (
    id varchar NOT NULL CONSTRAINT pk_invoice_lines PRIMARY KEY,
    invoice_id varchar NOT NULL
        CONSTRAINT fk_invoice_lines_invoice_id_invoices REFERENCES invoices (id) DEFERRABLE INITIALLY DEFERRED,
    position integer NOT NULL,
    kind varchar NOT NULL,
    base_model varchar,
    adapter_id varchar,
    price_version_id varchar CONSTRAINT fk_invoice_lines_price_version_id_price_versions REFERENCES price_versions (id),
    quantity NUMERIC(38, 9) NOT NULL,
    unit_price_nanos bigint NOT NULL,
    amount_nanos bigint NOT NULL,
    amount_cents bigint NOT NULL,
    request_count bigint,
    adapter_name varchar,
    late_for timestamptz,
    unit varchar NOT NULL,
    rank_class integer,
    tier integer,
    used_units NUMERIC(38, 9),
    description varchar,
    source_id varchar,
    covers_from timestamptz,
    covers_until timestamptz,
    service_tier varchar,
    list_price_nanos bigint,
    CONSTRAINT ck_invoice_lines_kind_known CHECK (
        kind IN ('uncached_input_tokens', 'cached_input_tokens', 'output_tokens', 'kv_page_seconds', 'adapter_storage', 'pinned_slots', 'cold_loads', 'base_fee', 'proration', 'discount', 'coupon', 'commitment', 'carried')),
    CONSTRAINT ck_invoice_lines_unit_known CHECK (
        unit IN ('token', 'page_second', 'package', 'gb_hour', 'slot_hour', 'load', 'amount')),
    CONSTRAINT ck_invoice_lines_counts_something CHECK (
        quantity > 0 AND request_count >= 0 AND (unit_price_nanos >= 0 AND amount_nanos >= 0
        OR kind IN ('proration', 'discount', 'coupon', 'carried'))),
    CONSTRAINT ck_invoice_lines_amount_is_quantity_times_price CHECK (
        unit IN ('page_second', 'gb_hour', 'slot_hour') OR amount_nanos = quantity * unit_price_nanos),
    CONSTRAINT ck_invoice_lines_usage_has_a_price CHECK (price_version_id IS NOT NULL OR unit = 'amount'),
    CONSTRAINT ck_invoice_lines_kv_amount_is_truncated_product CHECK (amount_nanos <= quantity * unit_price_nanos),
    CONSTRAINT ck_invoice_lines_cents_within_one CHECK (
        abs(amount_cents::numeric * 10000000 - amount_nanos) < 10000000),
    CONSTRAINT ck_invoice_lines_list_price_is_not_lower CHECK (
        list_price_nanos IS NULL OR service_tier = 'flex' AND list_price_nanos >= unit_price_nanos),
    CONSTRAINT uq_invoice_lines_invoice_id_position UNIQUE (invoice_id, position)
);

CREATE TABLE invoice_tax_lines (
    invoice_id varchar NOT NULL
        CONSTRAINT fk_invoice_tax_lines_invoice_id_invoices REFERENCES invoices (id) DEFERRABLE INITIALLY DEFERRED,
    position integer NOT NULL,
    name varchar NOT NULL,
    rate_ppm integer NOT NULL,
    base_cents bigint NOT NULL,
    tax_cents bigint NOT NULL,
    note varchar,
    CONSTRAINT pk_invoice_tax_lines PRIMARY KEY (invoice_id, position),
    CONSTRAINT ck_invoice_tax_lines_rate_possible CHECK (rate_ppm BETWEEN 0 AND 1000000)
);

CREATE TABLE credit_notes (
    id varchar NOT NULL CONSTRAINT pk_credit_notes PRIMARY KEY,
    invoice_id varchar NOT NULL CONSTRAINT fk_credit_notes_invoice_id_invoices REFERENCES invoices (id),
    tenant_id varchar NOT NULL,
    line_id varchar CONSTRAINT fk_credit_notes_line_id_invoice_lines REFERENCES invoice_lines (id),
    net_cents bigint NOT NULL,
    tax_cents bigint NOT NULL,
    total_cents bigint NOT NULL,
    destination varchar NOT NULL,
    due_cents bigint NOT NULL,
    balance_cents bigint NOT NULL,
    refund_cents bigint NOT NULL,
    reason varchar NOT NULL,
    reference varchar,
    transfer_id varchar NOT NULL
        CONSTRAINT uq_credit_notes_transfer_id UNIQUE CONSTRAINT fk_credit_notes_transfer_id_transfers REFERENCES transfers (id),
    created_at timestamptz NOT NULL,
    CONSTRAINT uq_credit_notes_tenant_id_reference UNIQUE (tenant_id, reference),
    CONSTRAINT ck_credit_notes_total_is_net_and_tax CHECK (total_cents = net_cents + tax_cents AND net_cents > 0),
    CONSTRAINT ck_credit_notes_total_goes_somewhere CHECK (
        total_cents = due_cents + balance_cents + refund_cents AND due_cents >= 0 AND balance_cents >= 0
        AND refund_cents >= 0),
    CONSTRAINT ck_credit_notes_destination_known CHECK (destination IN ('amount_due', 'balance', 'refund'))
);
CREATE INDEX ix_credit_notes_invoice_id ON credit_notes (invoice_id);

CREATE TABLE credit_note_tax_lines (
    credit_note_id varchar NOT NULL
        CONSTRAINT fk_credit_note_tax_lines_credit_note_id_credit_notes REFERENCES credit_notes (id) DEFERRABLE INITIALLY DEFERRED,
    position integer NOT NULL,
    name varchar NOT NULL,
    rate_ppm integer NOT NULL,
    base_cents bigint NOT NULL,
    tax_cents bigint NOT NULL,
    note varchar,
    CONSTRAINT pk_credit_note_tax_lines PRIMARY KEY (credit_note_id, position)
);

CREATE TABLE invoice_events (
    invoice_id varchar NOT NULL CONSTRAINT fk_invoice_events_invoice_id_invoices REFERENCES invoices (id),
    seq integer NOT NULL,
    kind varchar NOT NULL,
    amount_cents bigint NOT NULL,
    surplus_cents bigint NOT NULL,
    source varchar,
    reference varchar,
    credit_note_id varchar
        CONSTRAINT uq_invoice_events_credit_note_id UNIQUE CONSTRAINT fk_invoice_events_credit_note_id_credit_notes REFERENCES credit_notes (id),
    transfer_id varchar
        CONSTRAINT uq_invoice_events_transfer_id UNIQUE CONSTRAINT fk_invoice_events_transfer_id_transfers REFERENCES transfers (id),
    reason varchar,
    actor varchar,
    status varchar NOT NULL,
    amount_due_cents bigint NOT NULL,
    paid_cents bigint NOT NULL,
    credited_cents bigint NOT NULL,
    created_at timestamptz NOT NULL,
    write_off boolean DEFAULT false NOT NULL,
    CONSTRAINT pk_invoice_events PRIMARY KEY (invoice_id, seq),
    CONSTRAINT uq_invoice_events_source_reference UNIQUE (source, reference),
    CONSTRAINT ck_invoice_events_kind_known CHECK (
        kind IN ('finalized', 'open', 'payment', 'credit_note', 'void', 'uncollectible', 'recovered')),
    CONSTRAINT ck_invoice_events_status_known CHECK (status IN ('finalized', 'open', 'paid', 'void', 'uncollectible')),
    CONSTRAINT ck_invoice_events_source_known CHECK (source IN ('stripe', 'manual', 'credits', 'balance')),
    CONSTRAINT ck_invoice_events_payment_has_source CHECK ((kind = 'payment') = (source IS NOT NULL)),
    CONSTRAINT ck_invoice_events_note_is_named CHECK ((kind = 'credit_note') = (credit_note_id IS NOT NULL)),
    CONSTRAINT ck_invoice_events_surplus_not_negative CHECK (surplus_cents >= 0),
    CONSTRAINT ck_invoice_events_only_voids_write_off CHECK (NOT write_off OR kind = 'void')
);
CREATE INDEX ix_invoice_events_status ON invoice_events (status, invoice_id);

ALTER TABLE transfers ADD CONSTRAINT fk_transfers_invoice_id_invoices FOREIGN KEY (invoice_id) REFERENCES invoices (id);

-- The lines of a void invoice wait once, for the next invoice after the void, with what the void made unbilled.
CREATE FUNCTION billing_carries_void_invoice()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM invoices i
        JOIN invoice_events e ON e.invoice_id = i.id AND e.kind = 'void' AND NOT e.write_off
        JOIN subscriptions s ON s.tenant_id = i.tenant_id AND s.billed_until = NEW.billed_until
        WHERE i.id = NEW.invoice_id AND (i.tenant_id, i.period_start, i.period_end)
            = (NEW.tenant_id, NEW.period_start, NEW.period_end)
            AND billing_leg(e.transfer_id, 'usage_unbilled', i.tenant_id)
                + (SELECT coalesce(sum(amount_nanos), 0) FROM invoice_credits WHERE invoice_id = i.id)
                = NEW.amount_nanos
    ) THEN
        RAISE EXCEPTION 'INSERT into carried_periods refused: % is not what a void of invoice % left', NEW.amount_nanos,
            NEW.invoice_id USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION billing_credit_note_is_posted()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
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

-- All notes of an invoice together credit at most its net and its tax, and of a line at most its amount.
CREATE FUNCTION billing_credit_note_is_whole()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    invoice invoices;
    taxes_cents numeric;
    noted_net numeric;
    noted_tax numeric;
BEGIN
    SELECT * INTO STRICT invoice FROM invoices WHERE id = NEW.invoice_id;
    SELECT coalesce(sum(tax_cents), 0) INTO taxes_cents FROM credit_note_tax_lines WHERE credit_note_id = NEW.id;
    SELECT sum(net_cents), sum(tax_cents) INTO noted_net, noted_tax FROM credit_notes WHERE invoice_id = NEW.invoice_id;
    IF NEW.tax_cents <> taxes_cents OR NEW.tenant_id <> invoice.tenant_id THEN
        RAISE EXCEPTION 'credit note % does not agree with its taxes or its invoice', NEW.id
            USING ERRCODE = 'check_violation';
    END IF;
    IF noted_net > invoice.net_cents OR noted_tax > invoice.tax_cents THEN
        RAISE EXCEPTION 'credit notes of invoice % exceed it', NEW.invoice_id USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.line_id IS NOT NULL AND NOT EXISTS (
        SELECT FROM invoice_lines WHERE id = NEW.line_id AND invoice_id = NEW.invoice_id
            AND amount_cents >= (SELECT sum(net_cents) FROM credit_notes WHERE line_id = NEW.line_id)
    ) THEN
        RAISE EXCEPTION 'credit notes of line % exceed it', NEW.line_id USING ERRCODE = 'check_violation';
    END IF;
    IF NOT EXISTS (SELECT FROM invoice_events WHERE credit_note_id = NEW.id AND invoice_id = NEW.invoice_id) THEN
        RAISE EXCEPTION 'credit note % has no event', NEW.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;

-- Each document extends the chain by one link, and the numbers of its kind by one.
CREATE FUNCTION billing_document_follows()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    last documents;
    newest bigint;
BEGIN
    SELECT * INTO last FROM documents ORDER BY position DESC LIMIT 1;
    SELECT max(number) INTO newest FROM documents WHERE kind = NEW.kind;
    IF NEW.position <> coalesce(last.position, 0) + 1 OR NEW.number <> coalesce(newest, 0) + 1
        OR NEW.previous_sha256 <> coalesce(last.sha256, repeat('0', 64))
        OR NEW.sha256 <> encode(sha256(convert_to(concat_ws('|', NEW.position, NEW.kind, NEW.number, NEW.document_id,
            NEW.content_format, NEW.content_sha256, NEW.previous_sha256), 'UTF8')), 'hex')
    THEN
        RAISE EXCEPTION 'document % does not follow document %', NEW.document_id, last.document_id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION billing_has_number()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM documents WHERE document_id = NEW.id AND tenant_id = NEW.tenant_id) THEN
        RAISE EXCEPTION '% has no number', NEW.id USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;

-- An event continues the one before it: the same rules as billing.invoices.statuses.
CREATE FUNCTION billing_invoice_event_follows()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    total bigint;
    last invoice_events;
    due bigint;
    paid bigint;
    credited bigint;
    state text;
BEGIN
    SELECT total_cents INTO STRICT total FROM invoices WHERE id = NEW.invoice_id;
    SELECT * INTO last FROM invoice_events WHERE invoice_id = NEW.invoice_id ORDER BY seq DESC LIMIT 1;
    due := coalesce(last.amount_due_cents, 0);
    paid := coalesce(last.paid_cents, 0);
    credited := coalesce(last.credited_cents, 0);
    state := coalesce(last.status, 'finalized');
    IF NEW.seq <> coalesce(last.seq, 0) + 1 OR (NEW.kind = 'finalized') <> (last.seq IS NULL) THEN
        RAISE EXCEPTION 'event % of invoice % is not its next one', NEW.seq, NEW.invoice_id
            USING ERRCODE = 'check_violation';
    END IF;
    CASE NEW.kind
    WHEN 'finalized' THEN
        due := total;
    WHEN 'open' THEN
        state := CASE WHEN due = 0 THEN 'paid' ELSE 'open' END;
    WHEN 'payment' THEN
        due := due - NEW.amount_cents;
        paid := paid + NEW.amount_cents;
    WHEN 'credit_note' THEN
        due := due - NEW.amount_cents;
        credited := credited + (SELECT total_cents FROM credit_notes WHERE id = NEW.credit_note_id);
    WHEN 'void' THEN
        due := 0;
        paid := 0;
        state := 'void';
    WHEN 'uncollectible' THEN
        state := 'uncollectible';
    ELSE
    END CASE;
    IF due = 0 AND state IN ('open', 'uncollectible') THEN
        state := 'paid';
    END IF;
    IF NEW.amount_due_cents <> due OR NEW.paid_cents <> paid OR NEW.credited_cents <> credited OR NEW.status <> state THEN
        RAISE EXCEPTION 'event % of invoice % does not follow from the one before', NEW.seq, NEW.invoice_id
            USING ERRCODE = 'check_violation';
    END IF;
    IF (total >= 0 AND (due < 0 OR NEW.amount_cents < 0)) OR credited > greatest(total, 0)
        OR (NEW.kind = 'open' AND last.status <> 'finalized')
        OR (NEW.kind IN ('void', 'uncollectible') AND last.status <> 'open')
        OR (NEW.kind = 'void' AND EXISTS (SELECT FROM invoice_events e WHERE e.invoice_id = NEW.invoice_id AND e.source IN ('stripe', 'manual') AND e.amount_cents <> 0))
        OR (NEW.kind = 'recovered' AND last.status <> 'uncollectible')
        OR (NEW.kind = 'credit_note' AND last.status IN ('finalized', 'void'))
        OR (NEW.kind = 'payment' AND last.status IN ('void', 'paid') AND NEW.amount_cents <> 0)
    THEN
        RAISE EXCEPTION '% of invoice % refused: it is %, % cents are due', NEW.kind, NEW.invoice_id, last.status,
            last.amount_due_cents USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION billing_invoice_event_is_posted()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
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
            AND billing_leg(NEW.transfer_id, 'customer_balance', tenant) = - by_balance
            AND NEW.write_off <> EXISTS (SELECT FROM carried_periods WHERE invoice_id = NEW.invoice_id);
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

CREATE FUNCTION billing_invoice_is_whole()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    lines_nanos numeric;
    lines_cents numeric;
    credits_cents numeric;
    taxes_cents numeric;
BEGIN
    SELECT coalesce(sum(amount_nanos), 0), coalesce(sum(amount_cents), 0) INTO lines_nanos, lines_cents
        FROM invoice_lines WHERE invoice_id = NEW.id;
    SELECT coalesce(sum(amount_cents), 0) INTO credits_cents FROM invoice_credits WHERE invoice_id = NEW.id;
    SELECT coalesce(sum(tax_cents), 0) INTO taxes_cents FROM invoice_tax_lines WHERE invoice_id = NEW.id;
    IF NEW.amount_nanos <> lines_nanos OR NEW.net_cents <> lines_cents - credits_cents OR NEW.tax_cents <> taxes_cents THEN
        RAISE EXCEPTION 'invoice % says % nanos, % cents net and % cents of tax; its parts %, % and %', NEW.id,
            NEW.amount_nanos, NEW.net_cents, NEW.tax_cents, lines_nanos, lines_cents - credits_cents, taxes_cents
            USING ERRCODE = 'check_violation';
    END IF;
    IF EXISTS (SELECT FROM invoice_tax_lines WHERE invoice_id = NEW.id AND base_cents <> NEW.net_cents) THEN
        RAISE EXCEPTION 'invoice % has a tax on another amount than its net %', NEW.id, NEW.net_cents
            USING ERRCODE = 'check_violation';
    END IF;
    IF EXISTS (
        SELECT FROM invoices WHERE tenant_id = NEW.tenant_id AND id <> NEW.id
            AND period_start < NEW.period_end AND NEW.period_start < period_end
    ) THEN
        RAISE EXCEPTION 'invoice % covers time that another invoice of tenant % covers', NEW.id, NEW.tenant_id
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION billing_leg(transfer text, account text, tenant text)
    RETURNS bigint LANGUAGE sql STABLE SET search_path = pg_catalog, public, pg_temp AS $$
    SELECT coalesce(sum(e.amount_nanos), 0)::bigint FROM entries e JOIN accounts a ON a.id = e.account_id
    WHERE e.transfer_id = transfer AND a.kind = account AND a.tenant_id IS NOT DISTINCT FROM tenant
$$;

CREATE FUNCTION billing_moves(transfer text, transfer_kind text, account text, tenant text, nanos bigint)
    RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog, public, pg_temp AS $$
    SELECT EXISTS (SELECT FROM transfers WHERE id = transfer AND kind = transfer_kind)
        AND billing_leg(transfer, account, tenant) = nanos
$$;

-- A number without a document would be a gap.
CREATE FUNCTION billing_number_is_used()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
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

-- The parts of a document are written before it, so what exists accepts no further part.
CREATE FUNCTION billing_refuse_part_of_final()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
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

CREATE FUNCTION billing_share_wholes(wholes text[])
    RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    whole text;
BEGIN
    FOR whole IN SELECT DISTINCT each FROM unnest(wholes) each ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock_shared(hashtextextended(whole, 0));
    END LOOP;
END $$;

CREATE CONSTRAINT TRIGGER carried_periods_are_void AFTER INSERT ON carried_periods DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN ((new.invoice_id IS NOT NULL)) EXECUTE FUNCTION billing_carries_void_invoice();
CREATE CONSTRAINT TRIGGER carried_periods_close AFTER INSERT ON carried_periods DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN ((new.invoice_id IS NULL)) EXECUTE FUNCTION billing_closes_period();
CREATE CONSTRAINT TRIGGER credit_notes_are_posted AFTER INSERT ON credit_notes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_credit_note_is_posted();
CREATE CONSTRAINT TRIGGER credit_notes_are_whole AFTER INSERT ON credit_notes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_credit_note_is_whole();
CREATE CONSTRAINT TRIGGER credit_notes_have_numbers AFTER INSERT ON credit_notes DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_has_number();
CREATE CONSTRAINT TRIGGER documents_are_used AFTER INSERT ON documents DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_number_is_used();
CREATE CONSTRAINT TRIGGER invoice_events_are_posted AFTER INSERT ON invoice_events DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_invoice_event_is_posted();
CREATE CONSTRAINT TRIGGER invoices_are_whole AFTER INSERT ON invoices DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_invoice_is_whole();
CREATE CONSTRAINT TRIGGER invoices_have_numbers AFTER INSERT ON invoices DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_has_number();
CREATE CONSTRAINT TRIGGER invoices_reach_billed_until AFTER INSERT ON invoices DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION billing_closes_period();
CREATE TRIGGER carried_periods_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON carried_periods FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER credit_note_tax_lines_not_final AFTER INSERT ON credit_note_tax_lines REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_part_of_final();
CREATE TRIGGER credit_note_tax_lines_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON credit_note_tax_lines FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER credit_notes_wait_for_parts BEFORE INSERT ON credit_notes FOR EACH ROW EXECUTE FUNCTION billing_lock_whole();
CREATE TRIGGER credit_notes_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON credit_notes FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER documents_follow BEFORE INSERT ON documents FOR EACH ROW EXECUTE FUNCTION billing_document_follows();
CREATE TRIGGER documents_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON documents FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER invoice_credits_not_final AFTER INSERT ON invoice_credits REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_part_of_final();
CREATE TRIGGER invoice_credits_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON invoice_credits FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER invoice_events_follow BEFORE INSERT ON invoice_events FOR EACH ROW EXECUTE FUNCTION billing_invoice_event_follows();
CREATE TRIGGER invoice_events_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON invoice_events FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER invoice_lines_not_final AFTER INSERT ON invoice_lines REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_final();
CREATE TRIGGER invoice_lines_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON invoice_lines FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER invoice_tax_lines_not_final AFTER INSERT ON invoice_tax_lines REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_part_of_final();
CREATE TRIGGER invoice_tax_lines_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON invoice_tax_lines FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
CREATE TRIGGER invoices_wait_for_parts BEFORE INSERT ON invoices FOR EACH ROW EXECUTE FUNCTION billing_lock_whole();
CREATE TRIGGER invoices_written_once BEFORE DELETE OR UPDATE OR TRUNCATE ON invoices FOR EACH STATEMENT EXECUTE FUNCTION billing_refuse_change();
