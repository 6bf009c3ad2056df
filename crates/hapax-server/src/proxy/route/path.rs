//! The readings of a request's path: services normalise paths before they look for a handler.

/// Whether any reading of this path may differ from the path itself.
pub(crate) fn may_be_normalised(path: &str) -> bool {
    path.contains(['%', '.', '\\', ';']) || path.contains("//")
}

/// The path as RFC 3986, 6.2.2 normalises it, without empty segments; `None` where it leaves the root.
pub(crate) fn normalised(path: &str) -> Option<String> {
    let decoded = decode(path, |byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte));
    remove_dot_segments(&String::from_utf8_lossy(&decoded))
}

/// The path as the most liberal services read it: every escape decoded, `\\` as `/`, and segments
/// without their `;parameters`; `None` where it leaves the root.
pub(crate) fn liberal(path: &str) -> Option<String> {
    let decoded = decode(path, |_| true);
    let path = String::from_utf8_lossy(&decoded).replace('\\', "/");
    let segments: Vec<&str> =
        path.split('/').map(|segment| segment.split(';').next().unwrap_or_default()).collect();
    remove_dot_segments(&segments.join("/"))
}

/// Decodes the escapes of these bytes; writes the others with upper-case digits.
fn decode(path: &str, is_decoded: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&byte, behind)) = rest.split_first() {
        let escaped = if byte == b'%' { hex_byte(behind) } else { None };
        rest = if escaped.is_some() { &behind[2..] } else { behind };
        match escaped {
            Some(escaped) if is_decoded(escaped) => decoded.push(escaped),
            Some(escaped) => decoded.extend(format!("%{escaped:02X}").bytes()),
            None => decoded.push(byte),
        }
    }
    decoded
}

/// The byte that two hexadecimal digits at the start stand for.
fn hex_byte(digits: &[u8]) -> Option<u8> {
    let digit = |i: usize| char::from(*digits.get(i)?).to_digit(16);
    u8::try_from(digit(0)? * 16 + digit(1)?).ok()
}

/// Resolves `.` and `..`, and removes empty segments but for the last one, which is a slash at the end.
fn remove_dot_segments(path: &str) -> Option<String> {
    let Some(relative) = path.strip_prefix('/') else { return Some(path.to_owned()) };
    let mut kept: Vec<&str> = Vec::new();
    let mut is_folder = false;
    for segment in relative.split('/') {
        is_folder = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()?),
            segment => kept.push(segment),
        }
    }
    let end = if is_folder && !kept.is_empty() { "/" } else { "" };
    Some(format!("/{}{end}", kept.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_22_paths_are_read_as_services_read_them() {
        for (path, strict, lax) in [
            ("/", Some("/"), Some("/")),
            ("/a", Some("/a"), Some("/a")),
            ("/a/", Some("/a/"), Some("/a/")),
            ("//a///b", Some("/a/b"), Some("/a/b")),
            ("/%61/%2e%2E/b", Some("/b"), Some("/b")),
            ("/a/./b/..", Some("/a/"), Some("/a/")),
            ("/a%2fb", Some("/a%2Fb"), Some("/a/b")),
            ("/a%5cb", Some("/a%5Cb"), Some("/a/b")),
            ("/a;x=1/b;y", Some("/a;x=1/b;y"), Some("/a/b")),
            ("/a/..;/b", Some("/a/..;/b"), Some("/b")),
            ("/a%zz%4", Some("/a%zz%4"), Some("/a%zz%4")),
            ("/..", None, None),
            ("/a/..%2f../b", Some("/a/..%2F../b"), None),
            ("*", Some("*"), Some("*")),
        ] {
            assert_eq!(normalised(path).as_deref(), strict, "{path}");
            assert_eq!(liberal(path).as_deref(), lax, "{path}");
        }
    }
}
