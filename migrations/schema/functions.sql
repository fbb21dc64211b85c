CREATE FUNCTION billing_add_to_month(tenant text, at timestamptz, key text, input bigint, cached bigint, output bigint, nanos bigint)
    RETURNS void LANGUAGE sql SET search_path = pg_catalog, public, pg_temp AS $$
    INSERT INTO usage_months AS m (tenant_id, month, key_id, input_tokens, cached_tokens, output_tokens, amount_nanos)
    VALUES (tenant, date_trunc('month', at, 'UTC'), key, input, cached, output, nanos)
    ON CONFLICT (tenant_id, month, key_id) DO UPDATE SET
        input_tokens = m.input_tokens + excluded.input_tokens,
        cached_tokens = m.cached_tokens + excluded.cached_tokens,
        output_tokens = m.output_tokens + excluded.output_tokens,
        amount_nanos = m.amount_nanos + excluded.amount_nanos
$$;

-- The months from the given one to some months ahead. Ids outside of all months, such as those of clocks that are far
-- off, are kept in the default partition.
CREATE FUNCTION billing_add_usage_partitions(first timestamptz, months_ahead integer)
    RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    month timestamp := date_trunc('month', first AT TIME ZONE 'UTC');
    last timestamp := date_trunc('month', clock_timestamp() AT TIME ZONE 'UTC') + make_interval(months => months_ahead);
    name text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('billing_add_usage_partitions'));
    WHILE month <= last LOOP
        name := 'usage_records_' || to_char(month, 'YYYY_MM');
        IF to_regclass('partitions.' || name) IS NULL THEN
            EXECUTE format('CREATE TABLE partitions.%I (LIKE usage_records INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
            EXECUTE format(
                'ALTER TABLE usage_records ATTACH PARTITION partitions.%I FOR VALUES FROM (%L) TO (%L)', name,
                billing_request_id_floor(month AT TIME ZONE 'UTC'),
                billing_request_id_floor((month + interval '1 month') AT TIME ZONE 'UTC'));
        END IF;
        month := month + interval '1 month';
    END LOOP;
END $$;

-- Credit that names an invoice is what the invoice says: promotional credit its parts, paid credit its payments.
CREATE FUNCTION billing_check_invoice_credit(invoice text)
    RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
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

CREATE FUNCTION billing_closes_period()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
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

-- The oldest windows of the hours that begin more than so many days ago, and how many of them were never shared out.
CREATE FUNCTION billing_delete_cost_windows(days integer, most integer, OUT windows bigint, OUT unshared bigint)
    RETURNS record LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    before_ms bigint := floor(extract(epoch FROM clock_timestamp() - make_interval(days => greatest(days, 7))) / 3600)
        * 3600000;
BEGIN
    PERFORM set_config('tenora.deleting_cost_windows', 'on', true);
    WITH old AS (
        SELECT replica_id, boot_id, sequence FROM replica_cost_windows
        WHERE start_ms < before_ms ORDER BY start_ms LIMIT most
    ), gone AS (
        DELETE FROM replica_cost_windows w USING old o
        WHERE (w.replica_id, w.boot_id, w.sequence) = (o.replica_id, o.boot_id, o.sequence)
        RETURNING w.replica_id, w.start_ms
    )
    SELECT count(*), count(*) FILTER (WHERE NOT EXISTS (
        SELECT FROM cost_hours h WHERE h.replica_id = g.replica_id AND h.hour_ms = g.start_ms / 3600000 * 3600000
    )) INTO windows, unshared FROM gone g;
    PERFORM set_config('tenora.deleting_cost_windows', '', true);
END $$;

CREATE FUNCTION billing_lock_whole()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(NEW.id, 0));
    RETURN NEW;
END $$;

CREATE FUNCTION billing_refuse_change()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    RAISE EXCEPTION '% of % refused: its rows are written once; post a correction instead', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation';
END $$;

CREATE FUNCTION billing_refuse_final()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
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

CREATE FUNCTION billing_refuse_invoiced_time()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
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

CREATE FUNCTION billing_refuse_past_terms()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
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

CREATE FUNCTION billing_request_hour(request_id text)
    RETURNS timestamptz LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, public, pg_temp AS $_$
DECLARE
    ms bigint := 0;
BEGIN
    IF request_id !~ '^req_[0-9a-hjkmnp-tv-z]{26}(:rest)?$' THEN
        RETURN to_timestamp(0);
    END IF;
    FOR place IN 5..14 LOOP
        ms := ms * 32 + strpos('0123456789abcdefghjkmnpqrstvwxyz', substr(request_id, place, 1)) - 1;
    END LOOP;
    RETURN to_timestamp((ms / 3600000) * 3600);
END $_$;

CREATE FUNCTION billing_request_id_floor(instant timestamptz)
    RETURNS text LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, public, pg_temp AS $$
DECLARE
    rest bigint := (extract(epoch FROM instant) * 1000)::bigint;
    body text := '';
BEGIN
    FOR _ IN 1..10 LOOP
        body := substr('0123456789abcdefghjkmnpqrstvwxyz', (rest % 32)::int + 1, 1) || body;
        rest := rest / 32;
    END LOOP;
    RETURN 'req_' || body;
END $$;

CREATE FUNCTION billing_usage_change_is_posted()
    RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
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

-- A process may call these only where its role is granted it.
REVOKE ALL ON FUNCTION billing_add_usage_partitions(timestamptz, int) FROM PUBLIC;
REVOKE ALL ON FUNCTION billing_add_to_month(text, timestamptz, text, bigint, bigint, bigint, bigint) FROM PUBLIC;
REVOKE ALL ON FUNCTION billing_delete_cost_windows(int, int) FROM PUBLIC;
