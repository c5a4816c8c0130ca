"""The SQL statements of PostgresStorage. Except for listings, their cost does not depend on the
number of conversations."""

from .row_conversion import META_COLUMNS as COLUMNS

# Deleted conversations are remembered for this long, for readers that follow changes.
REMEMBERED_DAYS = 7
REMEMBERED_SECONDS = (REMEMBERED_DAYS - 1) * 24 * 3600
# Larger messages are left out of the context around a search hit, in bytes.
MAX_CONTEXT_MESSAGE_BYTES = 1024 * 1024
# Rows per query for readers that follow a log.
MAX_ROWS_FOLLOWED = 1000

CONVERSATION = f"SELECT id, last_seq, marker_seq, {COLUMNS} FROM conversations WHERE key = $1"
OF_HANDLE = "SELECT id, last_seq, agent, sender, created_at FROM conversations WHERE handle = $1"
OF_PAIR = "SELECT id, last_seq, agent, sender, created_at FROM conversations WHERE key = $1"
SINCE_MARKER = """
SELECT body FROM entries WHERE conversation = $1 AND seq >= $2 ORDER BY seq
"""
APPEND = """
SELECT * FROM crabtalk_append_runs(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)
"""
ACCEPT = """
INSERT INTO accepted (run, steer, key, agent, sender, daemon, body, message_key)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
"""
WITHDRAW = """
DELETE FROM accepted a USING unnest($1::text[], $2::bigint[]) AS given (run, steer)
WHERE a.run = given.run AND a.steer = given.steer
"""
# Accepted messages of dead daemons, or of runs that this daemon has given up.
ORPHANS = """
SELECT body FROM accepted a WHERE a.key = $1 AND (a.run = ANY($2::text[]) OR NOT EXISTS (
    SELECT FROM daemons d WHERE d.id = a.daemon AND d.expires_at > clock_timestamp()
))
"""
UNSETTLED = """
SELECT DISTINCT agent, sender FROM accepted a WHERE a.run = ANY($1::text[]) OR NOT EXISTS (
    SELECT FROM daemons d WHERE d.id = a.daemon AND d.expires_at > clock_timestamp()
) LIMIT $2
"""
# Enough events to find the ends of all recent runs.
LATE_EVENTS = """
SELECT body FROM entries WHERE conversation = $1 AND kind = 'event' ORDER BY seq DESC LIMIT 50
"""
RUN = """
SELECT e.body FROM conversations c JOIN entries e ON e.conversation = c.id
WHERE c.key = $1 AND e.run = $2 ORDER BY e.seq
"""
RUN_OF_KEY = """
SELECT e.body FROM conversations c JOIN message_keys k ON k.conversation = c.id
JOIN entries e ON e.conversation = k.conversation AND e.run = k.run
WHERE c.key = $1 AND k.key = $2 ORDER BY e.seq
"""
META = f"""
SELECT {COLUMNS}, (SELECT body FROM entries WHERE conversation = id AND seq = marker_seq) AS marker
FROM conversations WHERE key = $1
"""
# The first message in any case, the others as long as their total size is within the limit.
PAGE = """
SELECT body FROM (
    SELECT body, message_id, sum(octet_length(body)) OVER (ORDER BY message_id) AS size,
        row_number() OVER (ORDER BY message_id) AS place
    FROM (
        SELECT body, message_id FROM entries
        WHERE conversation = $1 AND message_id >= $2 ORDER BY message_id LIMIT $3
    ) AS few
) AS page WHERE place = 1 OR size <= $4 ORDER BY message_id
"""
MARKERS = """
SELECT body FROM entries WHERE conversation = $1 AND kind = 'marker' ORDER BY seq
"""
DELETE = f"""
WITH held AS (
    SELECT 1 FROM leases WHERE key = $1 AND fence = $2 FOR SHARE
), gone AS (
    DELETE FROM conversations WHERE key = $1 AND EXISTS (SELECT FROM held) RETURNING handle
), noted AS (
    INSERT INTO deletions (handle, changed) SELECT handle, pg_current_xact_id() FROM gone
    ON CONFLICT (handle) DO UPDATE SET changed = excluded.changed, at = excluded.at
), forgotten AS (
    DELETE FROM deletions WHERE at < statement_timestamp() - interval '{REMEMBERED_DAYS} days'
)
SELECT EXISTS (SELECT FROM held) AS is_held, EXISTS (SELECT FROM gone) AS is_gone
"""
# The last event of a lease's conversation, if anything was stored since its run began. The body is
# NULL if there is no event yet.
LAST_EVENT = """
SELECT (
    SELECT body FROM entries WHERE conversation = c.id AND kind = 'event' ORDER BY seq DESC LIMIT 1
) AS body FROM leases l JOIN conversations c ON c.key = l.key
WHERE l.key = $1 AND l.fence = $2 AND c.last_seq > l.since
"""
# The owner of the turn, if it is another daemon and alive.
OWNER = """
SELECT owner FROM leases WHERE key = $1 AND owner <> $2 AND expires_at > clock_timestamp()
"""
# Other live daemons that may have a run: the owner of the turn, and those where a run with this id
# or key is queued.
HOLDERS = """
SELECT owner AS daemon, run, true AS is_in_flight FROM leases
WHERE key = $1 AND owner <> $2 AND expires_at > clock_timestamp()
UNION ALL
SELECT a.daemon, a.run, false FROM accepted a
JOIN daemons d ON d.id = a.daemon AND d.expires_at > clock_timestamp()
WHERE a.key = $1 AND a.daemon <> $2 AND a.steer = 0 AND (a.run = $3 OR a.message_key = $4)
"""
INSERT_INTEREST = "INSERT INTO interests (daemon, agent, sender) VALUES ($1, $2, $3)"
NOTIFY_INTERESTS = """
UPDATE revisions SET number = number + 1 WHERE what = 'interests'
RETURNING pg_notify($1, 'revision interests ' || number)
"""
INTERESTS = """
SELECT i.daemon, i.agent, i.sender FROM interests i JOIN daemons d ON d.id = i.daemon
WHERE i.daemon <> $1 AND d.expires_at > clock_timestamp()
"""
VERSIONS = "SELECT handle, id, last_seq FROM conversations"
# Everything committed after this query has a transaction number of at least the horizon.
NOW = """
SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS horizon,
    extract(epoch FROM clock_timestamp())::bigint AS at
"""
CHANGED = "SELECT handle, id, last_seq FROM conversations WHERE changed >= $1::text::xid8"
GONE = """
SELECT handle FROM deletions d WHERE changed >= $1::text::xid8
AND NOT EXISTS (SELECT FROM conversations c WHERE c.handle = d.handle)
"""
# Without the bodies of events, which the reader skips.
FOLLOW = f"""
SELECT seq, body FROM (
    SELECT seq, CASE kind WHEN 'event' THEN NULL ELSE body END AS body,
        sum(octet_length(body)) OVER (ORDER BY seq) AS size,
        row_number() OVER (ORDER BY seq) AS place
    FROM (
        SELECT seq, kind, body FROM entries
        WHERE conversation = $1 AND seq > $2 AND seq <= $3 ORDER BY seq LIMIT {MAX_ROWS_FOLLOWED}
    ) AS few
) AS followed WHERE place = 1 OR size <= $4 ORDER BY seq
"""
# All records, events included.
READ_RECORDS = f"""
SELECT seq, body FROM (
    SELECT seq, body, sum(octet_length(body)) OVER (ORDER BY seq) AS size,
        row_number() OVER (ORDER BY seq) AS place
    FROM (
        SELECT seq, body FROM entries
        WHERE conversation = $1 AND seq > $2 AND seq <= $3 ORDER BY seq LIMIT {MAX_ROWS_FOLLOWED}
    ) AS few
) AS followed WHERE place = 1 OR size <= $4 ORDER BY seq
"""
WINDOWS = f"""
SELECT wanted.place, e.body
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) WITH ORDINALITY
    AS wanted (handle, id, before, after, place)
JOIN conversations c ON c.handle = wanted.handle
JOIN entries e ON e.conversation = c.id
    AND e.message_id BETWEEN wanted.id - wanted.before AND wanted.id + wanted.after
WHERE e.message_id = wanted.id OR octet_length(e.body) <= {MAX_CONTEXT_MESSAGE_BYTES}
ORDER BY wanted.place, e.message_id
"""


def build_listing_query(agent: str, sender: str) -> tuple[str, list[str]]:
    """Handle and metadata of all or matching conversations. Both filters have an index."""
    conditions: list[str] = []
    values: list[str] = []
    for name, value in (("agent", agent), ("sender", sender)):
        if value:
            values.append(value)
            conditions.append(f"{name} = ${len(values)}")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT handle, {COLUMNS} FROM conversations{where} ORDER BY id", values
