//! The two ways of writing a pattern: ThreadSanitizer's and Valgrind's.

/// Whether `text` has a part that `pattern` describes, as ThreadSanitizer
/// means it: a plain pattern is looked for anywhere, `*` stands for any
/// characters, `^` at the front and `$` at the end pin it down.
pub fn contains(pattern: &str, text: &str) -> bool {
    if text.is_empty() {
        return false;
    }
    let (at_start, pattern) = match pattern.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, pattern),
    };
    let (at_end, pattern) = match pattern.strip_suffix('$') {
        Some(rest) => (true, rest),
        None => (false, pattern),
    };
    let mut whole = String::with_capacity(pattern.len() + 2);
    if !at_start {
        whole.push('*');
    }
    whole.push_str(pattern);
    if !at_end {
        whole.push('*');
    }
    glob(&whole, text, false)
}

/// Whether `pattern` describes all of `text`, as Valgrind means it: `*` for
/// any characters, `?` for one.
pub fn describes(pattern: &str, text: &str) -> bool {
    glob(pattern, text, true)
}

/// Greedy matching with one point to fall back to, which is enough because a
/// later `*` can take over whatever an earlier one would have matched.
fn glob(pattern: &str, text: &str, question_mark: bool) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    let mut fall_back: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                fall_back = Some((p + 1, t));
                p += 1;
            }
            Some('?') if question_mark => {
                p += 1;
                t += 1;
            }
            Some(c) if *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match fall_back {
                Some((after_star, taken)) => {
                    fall_back = Some((after_star, taken + 1));
                    p = after_star;
                    t = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tsan_patterns() {
        for (pattern, text, expected) in [
            ("foo", "a foo b", true),
            ("^foo", "a foo", false),
            ("^foo", "foobar", true),
            ("foo$", "a foo", true),
            ("foo$", "foo a", false),
            ("^foo$", "foo", true),
            ("^foo$", "foofoo", false),
            ("a*b*c", "xxaxxbxxcxx", true),
            ("a*b*c", "xxaxxcxxbxx", false),
            ("^a*b$", "aXb", true),
            ("^a*b$", "aXbX", false),
            ("*", "x", true),
            ("foo", "", false),
            ("a?b", "a?b", true),
            ("a?b", "axb", false),
            ("^*ab$", "aab", true),
        ] {
            assert_eq!(contains(pattern, text), expected, "{pattern} in {text}");
        }
    }

    #[test]
    fn valgrind_patterns() {
        for (pattern, text, expected) in [
            ("foo", "foo", true),
            ("foo", "foobar", false),
            ("foo*", "foobar", true),
            ("f?o", "fxo", true),
            ("f?o", "fo", false),
            ("*.so*", "libx.so.1", true),
            ("?", "é", true),
            ("", "", true),
        ] {
            assert_eq!(describes(pattern, text), expected, "{pattern} for {text}");
        }
    }

    #[test]
    fn many_stars_do_not_take_for_ever() {
        let pattern = "*a".repeat(40) + "b";
        assert!(!describes(&pattern, &"a".repeat(4000)));
    }
}
