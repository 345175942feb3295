//! Static places in a program: the instruction of an access and the frames
//! above it.

use serde::{Deserialize, Serialize};

/// One static place: an instruction of a module and what is known about it.
///
/// `module` and `offset` are always known for mapped code; the rest comes from
/// symbols and debug info and is absent without them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Site {
    /// File name of the executable or library, without its folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Offset of the instruction from the module's first byte (its
    /// link-time address for position-dependent code).
    #[serde(default, with = "hex", skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Demangled name of the function the code was written in; the inlined
    /// one, where the instruction is part of an inlined body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// Source file, as the debug info has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Line on which `function` begins: lets the fingerprint survive edits
    /// above the function.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function_line: Option<u32>,
    /// Where the function begins, if only the unwind tables know of it: stands
    /// for the name in stripped code.
    #[serde(default, with = "hex", skip_serializing_if = "Option::is_none")]
    pub function_offset: Option<u64>,
}

/// One frame of a stack, innermost first; inlined calls have frames of their
/// own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Frame {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    #[serde(default, with = "hex", skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inlined: bool,
}

/// `Option<u64>` as a hexadecimal string, `"0x1234"`: JSON numbers lose bits
/// above 2^53 in most readers.
pub(crate) mod hex {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(value: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(number) => serializer.collect_str(&format_args!("{number:#x}")),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<u64>, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else {
            return Ok(None);
        };
        let digits = text.strip_prefix("0x").unwrap_or(&text);
        u64::from_str_radix(digits, 16)
            .map(Some)
            .map_err(|_| serde::de::Error::custom(format!("`{text}` is not a hexadecimal number")))
    }
}

/// As [`hex`], for a list.
pub(crate) mod hex_list {
    use super::hex;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct One(#[serde(with = "hex")] Option<u64>);

    pub fn serialize<S: Serializer>(values: &[u64], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(|value| One(Some(*value))))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
        let values = Vec::<One>::deserialize(deserializer)?;
        Ok(values.into_iter().filter_map(|value| value.0).collect())
    }
}
