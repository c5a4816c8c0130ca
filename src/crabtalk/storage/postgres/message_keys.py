"""Schema of message keys and run ids in the database, each with an index.

`message_keys` has one row per key and conversation; its primary key makes a key unique there across
all daemons. `entries.run` is empty for entries of earlier versions.
"""

# A whole append in one function: the log, the accepted messages that it settles, and the keys that
# it uses. As in crabtalk_append, the lease is locked until everything is committed.
TABLES = """
CREATE TABLE message_keys (
    conversation bigint NOT NULL REFERENCES conversations ON DELETE CASCADE,
    key text NOT NULL,
    run text NOT NULL,
    PRIMARY KEY (conversation, key)
);
ALTER TABLE entries ADD COLUMN run text;
CREATE INDEX entries_run ON entries (conversation, run, seq) WHERE run IS NOT NULL;
ALTER TABLE accepted ADD COLUMN message_key text;

CREATE FUNCTION crabtalk_append_runs(
    _key text, _fence bigint, _handle text, _agent text, _sender text, _create boolean,
    _created_at text, _updated_at text, _title text, _message_count bigint, _approved text[],
    _marker bigint, _message_ids bigint[], _kinds text[], _bodies text[],
    _runs text[], _keys text[], _settled_runs text[], _settled_steers bigint[],
    OUT refusal text, OUT conversation bigint, OUT last_seq bigint
) LANGUAGE plpgsql AS $$
DECLARE
    _count bigint := cardinality(_bodies);
    _base bigint;
    _found bigint;
BEGIN
    IF cardinality(_settled_runs) > 0 THEN
        PERFORM FROM accepted a
        JOIN unnest(_settled_runs, _settled_steers) AS given (run, steer) USING (run, steer)
        FOR UPDATE OF a;
        GET DIAGNOSTICS _found = ROW_COUNT;
        IF _found < cardinality(_settled_runs) THEN
            refusal := 'closed';
            RETURN;
        END IF;
    END IF;
    PERFORM FROM leases l WHERE l.key = _key AND l.fence = _fence FOR SHARE;
    IF NOT FOUND THEN
        refusal := 'fenced';
        RETURN;
    END IF;
    IF cardinality(array_remove(_keys, NULL)) > 0 AND EXISTS (
        SELECT FROM conversations c JOIN message_keys k ON k.conversation = c.id
        WHERE c.key = _key AND k.key = ANY(_keys)
    ) THEN
        refusal := 'used';
        RETURN;
    END IF;
    IF _create THEN
        INSERT INTO conversations AS c (key, handle, agent, sender, created_at, updated_at,
            title, message_count, approved, last_seq, marker_seq, changed)
        VALUES (_key, _handle, _agent, _sender, coalesce(_created_at, ''),
            coalesce(_updated_at, ''), coalesce(_title, ''), coalesce(_message_count, 0),
            coalesce(_approved, '{}'), _count, _marker, pg_current_xact_id())
        ON CONFLICT DO NOTHING
        RETURNING c.id, 0 INTO conversation, _base;
    ELSE
        UPDATE conversations c SET
            created_at = coalesce(_created_at, c.created_at),
            updated_at = coalesce(_updated_at, c.updated_at),
            title = coalesce(_title, c.title),
            message_count = coalesce(_message_count, c.message_count),
            approved = coalesce(_approved, c.approved),
            marker_seq = coalesce(c.last_seq + _marker, c.marker_seq),
            last_seq = c.last_seq + _count,
            changed = pg_current_xact_id()
        WHERE c.key = _key
        RETURNING c.id, c.last_seq - _count INTO conversation, _base;
    END IF;
    IF conversation IS NULL THEN
        refusal := CASE WHEN NOT _create THEN 'gone'
            WHEN EXISTS (SELECT FROM conversations c WHERE c.key = _key) THEN 'there'
            ELSE 'taken' END;
        RETURN;
    END IF;
    INSERT INTO entries (conversation, seq, message_id, kind, body, run)
    SELECT crabtalk_append_runs.conversation, _base + given.place, given.id, given.kind,
        given.body, given.run
    FROM unnest(_message_ids, _kinds, _bodies, _runs) WITH ORDINALITY
        AS given (id, kind, body, run, place);
    IF cardinality(array_remove(_keys, NULL)) > 0 THEN
        INSERT INTO message_keys (conversation, key, run)
        SELECT crabtalk_append_runs.conversation, given.key, given.run
        FROM unnest(_keys, _runs) AS given (key, run) WHERE given.key IS NOT NULL;
    END IF;
    IF cardinality(_settled_runs) > 0 THEN
        DELETE FROM accepted a USING unnest(_settled_runs, _settled_steers) AS given (run, steer)
        WHERE a.run = given.run AND a.steer = given.steer;
    END IF;
    last_seq := _base + _count;
END $$;

-- In place of the one before, which failed where another field of the entry had a NUL.
CREATE OR REPLACE FUNCTION crabtalk_take_mode() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    _mode text := substring(NEW.body FROM '[,{]"mode":"([^"]*)"');
BEGIN
    UPDATE conversations c SET mode = _mode WHERE c.id = NEW.conversation AND _mode IS NOT NULL;
    RETURN NULL;
END $$;
"""
