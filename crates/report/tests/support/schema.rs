//! A validator for the part of JSON Schema 2020-12 that
//! `docs/report.schema.json` uses. A keyword it does not know is an error, so
//! the schema cannot quietly ask for something that is not checked. With
//! `closed`, a property that the schema does not name is an error too: the
//! schema must know every field the report has.

use serde_json::Value;

pub struct Schema {
    root: Value,
    pub closed: bool,
}

impl Schema {
    pub fn new(text: &str, closed: bool) -> Self {
        let root = serde_json::from_str(text).expect("the schema is JSON");
        Schema { root, closed }
    }

    /// Every place where `value` breaks the schema.
    pub fn errors(&self, value: &Value) -> Vec<String> {
        let mut errors = Vec::new();
        self.check(&self.root, value, "", &mut errors);
        errors
    }

    fn check(&self, schema: &Value, value: &Value, at: &str, errors: &mut Vec<String>) {
        let keywords = schema.as_object().expect("a schema is an object");
        for (keyword, wanted) in keywords {
            let ok = match keyword.as_str() {
                "$schema" | "title" | "description" | "$defs" => true,
                "$ref" => {
                    let name = wanted.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
                    self.check(&self.root["$defs"][name], value, at, errors);
                    true
                }
                "type" => match wanted.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "integer" => value.is_u64() || value.is_i64(),
                    "boolean" => value.is_boolean(),
                    other => panic!("type {other}"),
                },
                "const" => value == wanted,
                "enum" => wanted.as_array().unwrap().contains(value),
                "minimum" => value.as_i64().is_none_or(|n| n >= wanted.as_i64().unwrap()),
                "maximum" => value.as_i64().is_none_or(|n| n <= wanted.as_i64().unwrap()),
                "minLength" => {
                    let shortest = wanted.as_u64().unwrap() as usize;
                    value
                        .as_str()
                        .is_none_or(|text| text.chars().count() >= shortest)
                }
                "pattern" => value
                    .as_str()
                    .is_none_or(|text| pattern(wanted.as_str().unwrap(), text)),
                "minItems" => value
                    .as_array()
                    .is_none_or(|a| a.len() as u64 >= wanted.as_u64().unwrap()),
                "maxItems" => value
                    .as_array()
                    .is_none_or(|a| a.len() as u64 <= wanted.as_u64().unwrap()),
                "items" => {
                    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(wanted, item, &format!("{at}/{index}"), errors);
                    }
                    true
                }
                "required" => {
                    for name in wanted.as_array().unwrap() {
                        let name = name.as_str().unwrap();
                        if value.is_object() && value.get(name).is_none() {
                            errors.push(format!("{at}: `{name}` is missing"));
                        }
                    }
                    true
                }
                "properties" => {
                    for (name, item) in value.as_object().into_iter().flatten() {
                        match wanted.get(name) {
                            Some(schema) => {
                                self.check(schema, item, &format!("{at}/{name}"), errors);
                            }
                            None if self.closed => {
                                errors.push(format!("{at}: the schema does not know `{name}`"));
                            }
                            None => {}
                        }
                    }
                    true
                }
                other => panic!("the validator does not know the keyword `{other}`"),
            };
            if !ok {
                errors.push(format!("{at}: {value} is not {keyword} {wanted}"));
            }
        }
    }
}

/// The patterns the schema uses, spelled out.
fn pattern(pattern: &str, text: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    match pattern {
        "^0x[0-9a-f]{1,16}$" => text.strip_prefix("0x").is_some_and(|hex| {
            (1..=16).contains(&hex.len())
                && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        }),
        "^[0-9]+:[0-9]+([+][0-9]+)?$" => text.split_once(':').is_some_and(|(thread, rest)| {
            let (count, part) = rest.split_once('+').unwrap_or((rest, "0"));
            digits(thread) && digits(count) && digits(part)
        }),
        "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z$" => {
            let shape: String = text
                .chars()
                .map(|c| if c.is_ascii_digit() { '0' } else { c })
                .collect();
            shape == "0000-00-00T00:00:00Z"
        }
        other => panic!("the validator does not know the pattern `{other}`"),
    }
}
