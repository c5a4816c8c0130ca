"""The database schema and its migrations.

Ciphertext columns are BLOBs. Not encrypted are ids, versions, sizes, times, the tags of sessions
(which clients make unreadable themselves) and the keys of the key-value store.
"""

import sqlite3

from .errors import RelayConfigError

# One script for each version. A released script never changes.
MIGRATIONS = (
    """
    CREATE TABLE accounts (
        id TEXT PRIMARY KEY,
        public_key BLOB NOT NULL UNIQUE,
        seq INTEGER NOT NULL DEFAULT 0,
        settings BLOB,
        settings_version INTEGER NOT NULL DEFAULT 0,
        created_at INTEGER NOT NULL
    );
    CREATE TABLE devices (
        id TEXT PRIMARY KEY,
        account TEXT NOT NULL REFERENCES accounts ON DELETE CASCADE,
        token_hash BLOB NOT NULL UNIQUE,
        kind TEXT NOT NULL,
        client TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        seen_at INTEGER NOT NULL
    );
    CREATE INDEX devices_of_account ON devices (account);
    CREATE TABLE challenges (
        hash BLOB PRIMARY KEY,
        created_at INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE pairings (
        kind TEXT NOT NULL,
        public_key BLOB NOT NULL,
        supports_v2 INTEGER NOT NULL,
        sealed INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        account TEXT,
        response BLOB,
        sealed_token BLOB,
        taken INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (kind, public_key)
    ) WITHOUT ROWID;
    CREATE TABLE sessions (
        no INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        account TEXT NOT NULL REFERENCES accounts ON DELETE CASCADE,
        tag TEXT NOT NULL,
        seq INTEGER NOT NULL DEFAULT 0,
        metadata BLOB NOT NULL,
        metadata_version INTEGER NOT NULL DEFAULT 0,
        agent_state BLOB,
        agent_state_version INTEGER NOT NULL DEFAULT 0,
        data_key BLOB,
        active INTEGER NOT NULL DEFAULT 1,
        active_at INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        UNIQUE (account, tag)
    );
    CREATE INDEX sessions_by_id ON sessions (account, id);
    CREATE INDEX sessions_by_change ON sessions (account, updated_at);
    CREATE TABLE messages (
        session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
        seq INTEGER NOT NULL,
        id TEXT NOT NULL,
        local_id TEXT,
        content BLOB NOT NULL,
        created_at INTEGER NOT NULL
    );
    CREATE UNIQUE INDEX messages_by_seq ON messages (session, seq);
    CREATE UNIQUE INDEX messages_by_local_id ON messages (session, local_id)
        WHERE local_id IS NOT NULL;
    CREATE TABLE machines (
        id TEXT PRIMARY KEY,
        account TEXT NOT NULL REFERENCES accounts ON DELETE CASCADE,
        metadata BLOB NOT NULL,
        metadata_version INTEGER NOT NULL,
        daemon_state BLOB,
        daemon_state_version INTEGER NOT NULL,
        data_key BLOB,
        seq INTEGER NOT NULL DEFAULT 0,
        active INTEGER NOT NULL DEFAULT 0,
        active_at INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL
    );
    CREATE INDEX machines_of_account ON machines (account);
    CREATE TABLE attachments (
        name TEXT PRIMARY KEY,
        session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
        account TEXT NOT NULL,
        size INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        is_kept INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX attachments_of_session ON attachments (session);
    CREATE INDEX attachments_of_account ON attachments (account);
    CREATE INDEX attachments_by_age ON attachments (created_at);
    CREATE TABLE pairs (
        account TEXT NOT NULL REFERENCES accounts ON DELETE CASCADE,
        key TEXT NOT NULL,
        value BLOB,
        version INTEGER NOT NULL,
        PRIMARY KEY (account, key)
    );
    CREATE TABLE artifacts (
        id TEXT PRIMARY KEY,
        account TEXT NOT NULL REFERENCES accounts ON DELETE CASCADE,
        header BLOB NOT NULL,
        header_version INTEGER NOT NULL,
        body BLOB NOT NULL,
        body_version INTEGER NOT NULL,
        data_key BLOB NOT NULL,
        seq INTEGER NOT NULL DEFAULT 0,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL
    );
    CREATE INDEX artifacts_of_account ON artifacts (account);
    CREATE TABLE access_keys (
        session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE,
        machine TEXT NOT NULL REFERENCES machines ON DELETE CASCADE,
        data BLOB NOT NULL,
        version INTEGER NOT NULL,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        PRIMARY KEY (session, machine)
    );
    CREATE INDEX access_keys_of_machine ON access_keys (machine);
    CREATE TABLE push_tokens (
        id TEXT PRIMARY KEY,
        account TEXT NOT NULL REFERENCES accounts ON DELETE CASCADE,
        token TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL,
        UNIQUE (account, token)
    );
    """,
    # The storage used by accounts, so that quotas need no scan: triggers count what belongs to an
    # account, and `append_messages` counts messages, a batch at a time. A pair and an artifact
    # count as 100 bytes more than they hold, because nothing else limits how many empty ones an
    # account can create. Also invites and removed accounts.
    """
    ALTER TABLE accounts ADD COLUMN messages INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE accounts ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sessions ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
    CREATE VIEW sizes AS
        SELECT account, length(metadata) + coalesce(length(agent_state), 0)
            + coalesce(length(data_key), 0) + bytes AS size FROM sessions
        UNION ALL SELECT account, length(metadata) + coalesce(length(daemon_state), 0)
            + coalesce(length(data_key), 0) FROM machines
        UNION ALL SELECT account, 100 + length(key) + coalesce(length(value), 0) FROM pairs
        UNION ALL SELECT account, 100 + length(header) + length(body) + length(data_key)
            FROM artifacts
        UNION ALL SELECT id, coalesce(length(settings), 0) FROM accounts;
    UPDATE sessions SET bytes =
        coalesce((SELECT sum(length(content)) FROM messages WHERE session = sessions.no), 0)
        + coalesce((SELECT sum(length(data)) FROM access_keys WHERE session = sessions.no), 0);
    UPDATE accounts SET
        messages = coalesce((SELECT sum(seq) FROM sessions WHERE account = accounts.id), 0),
        bytes = coalesce((SELECT sum(size) FROM sizes WHERE account = accounts.id), 0);
    CREATE TRIGGER session_added AFTER INSERT ON sessions BEGIN
        UPDATE accounts SET bytes = bytes + length(NEW.metadata)
            + coalesce(length(NEW.agent_state), 0) + coalesce(length(NEW.data_key), 0)
            WHERE id = NEW.account;
    END;
    CREATE TRIGGER session_changed AFTER UPDATE OF metadata, agent_state ON sessions BEGIN
        UPDATE accounts SET bytes = bytes
            + length(NEW.metadata) + coalesce(length(NEW.agent_state), 0)
            - length(OLD.metadata) - coalesce(length(OLD.agent_state), 0)
            WHERE id = NEW.account;
    END;
    CREATE TRIGGER session_removed AFTER DELETE ON sessions BEGIN
        UPDATE accounts SET messages = messages - OLD.seq, bytes = bytes - OLD.bytes
            - length(OLD.metadata) - coalesce(length(OLD.agent_state), 0)
            - coalesce(length(OLD.data_key), 0) WHERE id = OLD.account;
    END;
    CREATE TRIGGER machine_added AFTER INSERT ON machines BEGIN
        UPDATE accounts SET bytes = bytes + length(NEW.metadata)
            + coalesce(length(NEW.daemon_state), 0) + coalesce(length(NEW.data_key), 0)
            WHERE id = NEW.account;
    END;
    CREATE TRIGGER machine_changed AFTER UPDATE OF metadata, daemon_state ON machines BEGIN
        UPDATE accounts SET bytes = bytes
            + length(NEW.metadata) + coalesce(length(NEW.daemon_state), 0)
            - length(OLD.metadata) - coalesce(length(OLD.daemon_state), 0)
            WHERE id = NEW.account;
    END;
    CREATE TRIGGER machine_removed AFTER DELETE ON machines BEGIN
        UPDATE accounts SET bytes = bytes - length(OLD.metadata)
            - coalesce(length(OLD.daemon_state), 0) - coalesce(length(OLD.data_key), 0)
            WHERE id = OLD.account;
    END;
    CREATE TRIGGER access_key_added AFTER INSERT ON access_keys BEGIN
        UPDATE accounts SET bytes = bytes + length(NEW.data)
            WHERE id = (SELECT account FROM sessions WHERE no = NEW.session);
        UPDATE sessions SET bytes = bytes + length(NEW.data) WHERE no = NEW.session;
    END;
    CREATE TRIGGER access_key_changed AFTER UPDATE OF data ON access_keys BEGIN
        UPDATE accounts SET bytes = bytes + length(NEW.data) - length(OLD.data)
            WHERE id = (SELECT account FROM sessions WHERE no = NEW.session);
        UPDATE sessions SET bytes = bytes + length(NEW.data) - length(OLD.data)
            WHERE no = NEW.session;
    END;
    CREATE TRIGGER access_key_removed AFTER DELETE ON access_keys BEGIN
        UPDATE accounts SET bytes = bytes - length(OLD.data)
            WHERE id = (SELECT account FROM sessions WHERE no = OLD.session);
        UPDATE sessions SET bytes = bytes - length(OLD.data) WHERE no = OLD.session;
    END;
    CREATE TRIGGER pair_added AFTER INSERT ON pairs BEGIN
        UPDATE accounts SET bytes = bytes + 100 + length(NEW.key)
            + coalesce(length(NEW.value), 0) WHERE id = NEW.account;
    END;
    CREATE TRIGGER pair_changed AFTER UPDATE OF value ON pairs BEGIN
        UPDATE accounts SET bytes = bytes + coalesce(length(NEW.value), 0)
            - coalesce(length(OLD.value), 0) WHERE id = NEW.account;
    END;
    CREATE TRIGGER artifact_added AFTER INSERT ON artifacts BEGIN
        UPDATE accounts SET bytes = bytes + 100 + length(NEW.header) + length(NEW.body)
            + length(NEW.data_key) WHERE id = NEW.account;
    END;
    CREATE TRIGGER artifact_changed AFTER UPDATE OF header, body ON artifacts BEGIN
        UPDATE accounts SET bytes = bytes + length(NEW.header) + length(NEW.body)
            - length(OLD.header) - length(OLD.body) WHERE id = NEW.account;
    END;
    CREATE TRIGGER artifact_removed AFTER DELETE ON artifacts BEGIN
        UPDATE accounts SET bytes = bytes - 100 - length(OLD.header) - length(OLD.body)
            - length(OLD.data_key) WHERE id = OLD.account;
    END;
    CREATE TRIGGER settings_changed AFTER UPDATE OF settings ON accounts BEGIN
        UPDATE accounts SET bytes = bytes + coalesce(length(NEW.settings), 0)
            - coalesce(length(OLD.settings), 0) WHERE id = NEW.id;
    END;
    CREATE TABLE invites (
        id TEXT PRIMARY KEY,
        hash BLOB NOT NULL UNIQUE,
        uses_left INTEGER NOT NULL,
        used INTEGER NOT NULL DEFAULT 0,
        created_at INTEGER NOT NULL,
        expires_at INTEGER NOT NULL
    );
    CREATE TABLE removals (
        no INTEGER PRIMARY KEY AUTOINCREMENT,
        account TEXT NOT NULL
    );
    """,
)


def migrate_database(db: sqlite3.Connection, migrations: tuple[str, ...] = MIGRATIONS) -> None:
    """Apply each migration completely or not at all. Raises RelayConfigError for the database of a
    later relay."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > len(migrations):
        raise RelayConfigError(
            f"the database is of version {version} and this relay knows {len(migrations)}:"
            " update crabtalk-web"
        )
    for number, script in enumerate(migrations[version:], version + 1):
        db.execute("BEGIN IMMEDIATE")
        try:
            for statement in split_statements(script):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {number}")
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")


def split_statements(script: str) -> list[str]:
    """`executescript` commits before it starts, and could leave half a migration behind."""
    statements, statement = [], ""
    for part in script.split(";"):
        statement += f"{part};"
        if sqlite3.complete_statement(statement):  # a trigger has semicolons inside
            statements.append(statement)
            statement = ""
    return [statement_text for statement_text in statements if statement_text.strip(" \n;")]
