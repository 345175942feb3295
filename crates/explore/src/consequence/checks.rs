//! What is watched, in the user's words, and whether it makes sense for the
//! program.

use super::allocators::{AllocatorError, Custom};
use super::invariant::{Invariant, InvariantError};
use serde::{Deserialize, Serialize};
use std::path::Path;
use symbols::Module;

/// What is watched, in the user's words.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checks {
    pub heap: bool,
    pub allocators: Vec<String>,
    pub invariants: Vec<String>,
}

/// What is wrong with what the user asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    #[error(transparent)]
    Allocator(#[from] AllocatorError),
    #[error(transparent)]
    Invariant(#[from] InvariantError),
    #[error("--allocator: {program} has no function `{function}`; give a name from its symbols")]
    NoFunction { program: String, function: String },
}

impl Checks {
    /// All that is watched unless the user says otherwise.
    pub fn standard() -> Checks {
        Checks {
            heap: true,
            ..Checks::default()
        }
    }

    pub(super) fn is_none(&self) -> bool {
        !self.heap && self.invariants.is_empty()
    }

    /// Whether all of it makes sense for this program.
    pub fn verify(&self, program: &Path) -> Result<(), CheckError> {
        self.read(program)?;
        Ok(())
    }

    pub(super) fn read(&self, program: &Path) -> Result<(Vec<Custom>, Vec<Invariant>), CheckError> {
        let module = Module::open(program);
        let mut customs = Vec::new();
        for text in &self.allocators {
            let custom = Custom::parse(text)?;
            for (function, _) in &custom.functions {
                // It may be a library's, which is not known yet.
                let dynamic = module
                    .sections()
                    .iter()
                    .any(|section| section.name == ".interp");
                if !dynamic && module.functions_named(function).is_empty() {
                    return Err(CheckError::NoFunction {
                        program: module.name().to_string(),
                        function: function.clone(),
                    });
                }
            }
            customs.push(custom);
        }
        let invariants = self
            .invariants
            .iter()
            .map(|text| Invariant::parse(text, &module))
            .collect::<Result<_, _>>()?;
        Ok((customs, invariants))
    }

    /// Functions of allocators that the user has named.
    pub(crate) fn custom_functions(&self) -> Vec<String> {
        self.allocators
            .iter()
            .filter_map(|text| Custom::parse(text).ok())
            .flat_map(|custom| custom.functions)
            .map(|(name, _)| name)
            .collect()
    }
}
