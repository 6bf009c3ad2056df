//! Page cursors: the store's own cursor with a checksum, so that a damaged cursor, or one of another
//! list, is refused instead of restarting the list.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hapax::{Fingerprint, Tenant};

use crate::problem::Problem;

/// The length of the checksum, in characters.
const CHECK_LENGTH: usize = 8;

/// Makes the cursor that a client gets.
pub(super) fn wrap_cursor(store: &str, tenant: &Tenant, next: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(checksum(store, tenant, next) + next)
}

/// Recovers the cursor of the store.
pub(super) fn unwrap_cursor(store: &str, tenant: &Tenant, after: &str) -> Result<String, Problem> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(after).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    let next = text.as_deref().and_then(|text| text.split_at_checked(CHECK_LENGTH));
    match next {
        Some((given, next)) if given == checksum(store, tenant, next) => Ok(next.to_owned()),
        _ => Err(invalid_cursor()),
    }
}

pub(super) fn invalid_cursor() -> Problem {
    Problem::invalid("query parameter `after` takes the `next` of an earlier page")
}

fn checksum(store: &str, tenant: &Tenant, next: &str) -> String {
    let parts = [store, tenant.as_str(), next].map(str::as_bytes);
    Fingerprint::of(&parts).as_str()[..CHECK_LENGTH].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_is_accepted_for_its_own_list_only() {
        let (mine, other) = (Tenant::default(), Tenant::new("other").unwrap());
        let next = wrap_cursor("sqlite", &mine, "default:command:POST /a%3Ab:k");
        assert_eq!(unwrap_cursor("sqlite", &mine, &next).unwrap(), "default:command:POST /a%3Ab:k");
        assert!(unwrap_cursor("sqlite", &other, &next).is_err());
        assert!(unwrap_cursor("redis", &mine, &next).is_err());
        for wrong in ["", "x", "%", &next[1..], &next[..next.len() - 2], &format!("{next}AA")] {
            assert!(unwrap_cursor("sqlite", &mine, wrong).is_err(), "{wrong}");
        }
    }
}
