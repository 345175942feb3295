//! The outside, as a copy of the world sees it.
//!
//! Paper 003 runs alternates inside a model of the environment; here a copy
//! (see `snapshot`) gets what the recorded run got, and leaves no trace:
//! - what it writes to streams is captured per stream (`outputs`);
//! - what it writes to files goes to an overlay that only it sees (`overlay`);
//! - what it reads comes from the recording, matched per stream: per
//!   descriptor by how it came to be, per path, per question (`inputs`).
//!
//! The copy may ask in another order than the recorded run did. Deviation from
//! a real machine: a question the recorded run never asked is answered by the
//! host if answering changes nothing there (opening to read, stat), with
//! success if it would change something (unlink), and else with "not
//! implemented". Guarantee: nothing outside is ever written.

mod inputs;
mod outputs;
mod overlay;

pub use inputs::{Consumed, InputIndex, OutsideSignal};
pub use outputs::{Captured, FirstDifference, WriteNote, first_difference};

pub(crate) use inputs::{Arrived, Inputs};
pub(crate) use outputs::Outputs;
pub(crate) use overlay::Overlay;

use crate::record::{Files, InputReader};
use crate::schedule::Random64;
use std::path::PathBuf;
use std::rc::Rc;

/// The call under way, as far as the outside is concerned.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Asking {
    /// Which stream or path it is about; 0 if none.
    pub stream: u64,
    /// Virtual time.
    pub now: u64,
    /// Position in a file, for reads that have one.
    pub position: Option<u64>,
    pub arguments: [u64; 6],
    /// The host may be asked: the answer changes nothing there.
    pub harmless: bool,
}

/// Recorded inputs that nobody has read yet.
pub(crate) struct ToCome {
    pub reader: InputReader,
    /// What took each of the recording's inputs, and which is next.
    pub index: Option<Rc<InputIndex>>,
    pub count: usize,
}

/// What a copy knows of the outside.
pub(crate) struct CopyIo {
    /// Use `inputs()` where those to come matter.
    pub known_inputs: Inputs,
    /// The rest of the recorded inputs: read when the copy first asks for one,
    /// which most do not.
    pub to_come: Option<ToCome>,
    pub files: Option<Files>,
    pub overlay: Overlay,
    pub outputs: Outputs,
    /// Random numbers after the recorded ones.
    pub random: Random64,
    /// The call under way.
    pub asking: Asking,
    /// Where the program was started.
    pub directory: PathBuf,
}

impl CopyIo {
    pub fn new(
        inputs: Inputs,
        files: Option<Files>,
        recorded_at: Option<std::time::SystemTime>,
    ) -> Self {
        CopyIo {
            known_inputs: inputs,
            to_come: None,
            files,
            overlay: Overlay::new(recorded_at),
            outputs: Outputs::default(),
            random: Random64::new(0x6465_6164_6865_6174),
            asking: Asking::default(),
            directory: PathBuf::from("/"),
        }
    }

    /// What the recorded run got. Where the recording cannot be read it ends:
    /// whoever replays it says what is wrong with it.
    pub fn inputs(&mut self) -> &mut Inputs {
        if let Some(mut rest) = self.to_come.take() {
            while let Ok(false) = rest.reader.at_end() {
                let index = rest.index.as_ref();
                let by = index.and_then(|index| index.consumed.get(rest.count).copied());
                let Ok(effect) = rest.reader.next_effect() else {
                    break;
                };
                self.known_inputs.expect(effect, by);
                rest.count += 1;
            }
        }
        &mut self.known_inputs
    }
}

/// A name for a stream: what it is and which one.
pub(crate) fn stream_key(parts: &[&[u8]]) -> u64 {
    let mut hash = xxhash_rust::xxh3::Xxh3::new();
    for part in parts {
        hash.update(&(part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    // Zero means "no stream".
    hash.digest().max(1)
}
