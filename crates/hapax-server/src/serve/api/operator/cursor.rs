//! Where a page ended: the store's own word, wrapped so that another list's, or one that was
//! damaged on the way, is refused instead of starting over.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hapax::{Fingerprint, Tenant};

use crate::serve::problem::Problem;

/// The check's length, in characters.
const CHECK: usize = 8;

/// What the caller is given.
pub(super) fn wrapped(store: &str, tenant: &Tenant, next: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(check(store, tenant, next) + next)
}

/// What the store is given back.
pub(super) fn unwrapped(store: &str, tenant: &Tenant, after: &str) -> Result<String, Problem> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(after).ok();
    let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    let next = text.as_deref().and_then(|text| text.split_at_checked(CHECK));
    match next {
        Some((given, next)) if given == check(store, tenant, next) => Ok(next.to_owned()),
        _ => Err(Problem::invalid("query parameter `after` takes the `next` of an earlier page")),
    }
}

fn check(store: &str, tenant: &Tenant, next: &str) -> String {
    let parts = [store, tenant.as_str(), next].map(str::as_bytes);
    Fingerprint::of(&parts).as_str()[..CHECK].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_page_of_the_same_list_is_gone_on_from() {
        let (mine, other) = (Tenant::default(), Tenant::new("other").unwrap());
        let next = wrapped("sqlite", &mine, "default:command:POST /a%3Ab:k");
        assert_eq!(unwrapped("sqlite", &mine, &next).unwrap(), "default:command:POST /a%3Ab:k");
        assert!(unwrapped("sqlite", &other, &next).is_err());
        assert!(unwrapped("redis", &mine, &next).is_err());
        for wrong in ["", "x", "%", &next[1..], &next[..next.len() - 2], &format!("{next}AA")] {
            assert!(unwrapped("sqlite", &mine, wrong).is_err(), "{wrong}");
        }
    }
}
