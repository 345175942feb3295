//! The gdb server: a stock gdb drives a timeline.
//!
//! gdb speaks its remote protocol (crate `gdbstub`); threads, registers,
//! memory, break- and watchpoints, stepping and running in both directions are
//! answered from the timeline. Everything is read-only unless the user allows
//! writing, and then a write makes a copy that goes its own way. gdb may
//! detach and attach again; the position stays.
//!
//! What a replay cannot do and how it answers: all threads move together as
//! they did when recorded, so scheduler locking has no effect; signals for the
//! program are not delivered.

mod connection;
mod monitor;
mod registers;
mod target;

pub use connection::Door;
pub use target::Landmarks;

use crate::{Error, Timeline};
use connection::Line;
use gdbstub::stub::state_machine::GdbStubStateMachine;
use gdbstub::stub::{DisconnectReason, GdbStub};
use target::Debuggee;

/// Packets of this size are what gdb uses for memory at most.
const PACKET: usize = 32 << 10;

/// What the session is about.
pub struct Session {
    pub timeline: Timeline,
    pub landmarks: Landmarks,
    /// The program's file, for gdb to read symbols from.
    pub program: Vec<u8>,
    pub allow_write: bool,
    /// When gdb has gone, another may come.
    pub again: bool,
}

/// Serves one gdb after the other until one of them kills the program or
/// says `monitor quit`.
pub fn serve(session: Session, door: &mut Door) -> Result<(), Error> {
    let name = door.name();
    let failed = |error| Error::Address {
        address: name.clone(),
        error,
    };
    let again = session.again;
    let mut debuggee = Debuggee::new(session)?;
    while let Some(line) = door.wait().map_err(failed)? {
        if converse(&mut debuggee, line)? || !again {
            return Ok(());
        }
        debuggee.forget_stops();
    }
    Ok(())
}

/// One conversation; true if it is to be the last.
fn converse(debuggee: &mut Debuggee, line: Line) -> Result<bool, Error> {
    let stub = GdbStub::builder(line)
        .packet_buffer_size(PACKET)
        .build()
        .map_err(|error| Error::Connection(error.to_string()))?;
    let fatal = |debuggee: &mut Debuggee, error: String| match debuggee.failure.take() {
        Some(error) => error,
        None => Error::Connection(error),
    };
    let mut state = match stub.run_state_machine(debuggee) {
        Ok(state) => state,
        Err(error) => return Err(fatal(debuggee, error.to_string())),
    };
    loop {
        let next = match state {
            GdbStubStateMachine::Idle(mut idle) => match idle.borrow_conn().read() {
                Ok(Some(byte)) => idle.incoming_data(debuggee, byte),
                // gdb has gone without a word.
                Ok(None) => return Ok(debuggee.quits),
                Err(error) => return Err(Error::Connection(error.to_string())),
            },
            GdbStubStateMachine::Running(mut running) => {
                let line = running.borrow_conn();
                let reason = debuggee.go(&mut || line.is_interrupted())?;
                running.report_stop(debuggee, reason)
            }
            GdbStubStateMachine::CtrlCInterrupt(interrupted) => {
                let reason = debuggee.interrupted();
                interrupted.interrupt_handled(debuggee, Some(reason))
            }
            GdbStubStateMachine::Disconnected(gone) => {
                let killed = gone.get_reason() == DisconnectReason::Kill;
                return Ok(killed || debuggee.quits);
            }
        };
        state = match next {
            Ok(next) => next,
            Err(error) if error.is_connection_error() => return Ok(debuggee.quits),
            Err(error) => return Err(fatal(debuggee, error.to_string())),
        };
    }
}
