//! The tables of the store, and the steps from older ones.
//!
//! `PRAGMA user_version` counts the steps taken. Each step runs in the same
//! transaction as the new count, so a killed upgrade is as if it had not
//! begun. A file with more steps than this program knows is left alone.

use rusqlite::{Connection, TransactionBehavior};

/// What each version added. Never edit a step that was released: add one.
pub const STEPS: &[&str] = &[
    "
    CREATE TABLE recordings (
        id INTEGER PRIMARY KEY,
        started TEXT NOT NULL,
        program TEXT NOT NULL,
        gone INTEGER NOT NULL DEFAULT 0
    );
    CREATE TABLE runs (
        id INTEGER PRIMARY KEY,
        started TEXT NOT NULL,
        tool TEXT NOT NULL,
        program TEXT NOT NULL,
        exit_deadheat INTEGER NOT NULL,
        counts TEXT NOT NULL,
        suppressed INTEGER NOT NULL,
        report TEXT NOT NULL
    );
    CREATE TABLE sightings (
        run INTEGER NOT NULL REFERENCES runs (id),
        race INTEGER NOT NULL,
        fingerprint TEXT NOT NULL,
        verdict TEXT NOT NULL,
        instances INTEGER NOT NULL,
        suppressed INTEGER NOT NULL,
        body BLOB,
        PRIMARY KEY (run, race)
    );
    CREATE INDEX sightings_by_race ON sightings (fingerprint, run, verdict, instances);
    CREATE INDEX sightings_by_run ON sightings (run, fingerprint, verdict, suppressed);
    CREATE TABLE marks (
        id INTEGER PRIMARY KEY,
        fingerprint TEXT NOT NULL,
        state TEXT NOT NULL,
        author TEXT NOT NULL,
        date TEXT NOT NULL,
        reason TEXT NOT NULL
    );
    CREATE INDEX marks_by_race ON marks (fingerprint);
",
    "
    ALTER TABLE runs ADD COLUMN causes INTEGER;
",
];

#[derive(Debug)]
pub enum Failure {
    /// The file has `found` steps, more than are known here.
    Newer {
        found: usize,
    },
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Failure::Sqlite(error)
    }
}

/// Brings the database to the last of `steps`.
pub fn migrate(database: &mut Connection, steps: &[&str]) -> Result<(), Failure> {
    if version(database)? == steps.len() {
        return Ok(());
    }
    let transaction = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Read again inside: another process may have done it meanwhile.
    let found = version(&transaction)?;
    if found > steps.len() {
        return Err(Failure::Newer { found });
    }
    for step in &steps[found..] {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "user_version", steps.len() as i64)?;
    transaction.commit()?;
    Ok(())
}

fn version(database: &Connection) -> rusqlite::Result<usize> {
    let version: i64 = database.pragma_query_value(None, "user_version", |row| row.get(0))?;
    Ok(usize::try_from(version).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_taken_once_and_in_order() {
        let mut database = Connection::open_in_memory().unwrap();
        let one = ["CREATE TABLE a (x); INSERT INTO a VALUES (1)"];
        let two = [one[0], "ALTER TABLE a ADD COLUMN y DEFAULT 7"];
        migrate(&mut database, &one).unwrap();
        migrate(&mut database, &one).unwrap();
        migrate(&mut database, &two).unwrap();
        let row: (i64, i64) = database
            .query_row("SELECT x, y FROM a", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .unwrap();
        assert_eq!(row, (1, 7), "old rows are kept");
        assert!(matches!(
            migrate(&mut database, &one),
            Err(Failure::Newer { found: 2 })
        ));
    }

    #[test]
    fn a_step_that_fails_leaves_nothing_behind() {
        let mut database = Connection::open_in_memory().unwrap();
        let bad = ["CREATE TABLE a (x)", "CREATE TABLE b (x); nonsense"];
        assert!(migrate(&mut database, &bad).is_err());
        assert_eq!(version(&database).unwrap(), 0);
        migrate(&mut database, &bad[..1]).unwrap();
    }
}
