//! The stored form of an item: texts and bytes, each with its length.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::queue::{ItemId, QueueItem};
use hapax_core::{Fingerprint, Tenant};

/// A digest of a tenant, a key or a token, by which scripts distinguish them whatever bytes they contain.
pub(super) fn digest(parts: &[&str]) -> String {
    let parts: Vec<_> = parts.iter().map(|part| part.as_bytes()).collect();
    Fingerprint::of(&parts).as_str()[..32].to_owned()
}

/// Encodes tenant, topic, key, content type, payload, then names and values of headers. Each part is
/// `<length>:<bytes>`, or `-` if it is missing.
pub(super) fn encode(item: &QueueItem) -> Vec<u8> {
    let mut body = Vec::with_capacity(item.payload.len() + 128);
    write_part(&mut body, Some(item.tenant.as_str().as_bytes()));
    write_part(&mut body, Some(item.topic.as_bytes()));
    write_part(&mut body, item.key.as_deref().map(str::as_bytes));
    write_part(&mut body, item.content_type.as_deref().map(str::as_bytes));
    write_part(&mut body, Some(&item.payload));
    for (name, value) in &item.headers {
        write_part(&mut body, Some(name.as_bytes()));
        write_part(&mut body, Some(value.as_bytes()));
    }
    body
}

fn write_part(body: &mut Vec<u8>, part: Option<&[u8]>) {
    match part {
        None => body.push(b'-'),
        Some(part) => {
            body.extend_from_slice(format!("{}:", part.len()).as_bytes());
            body.extend_from_slice(part);
        }
    }
}

/// `None` if hapax did not write the body.
pub(super) fn decode(id: ItemId, body: Vec<u8>) -> Option<QueueItem> {
    let mut rest = Bytes::from(body);
    let tenant = Tenant::stored(&read_text(&mut rest)??);
    let topic = read_text(&mut rest)??;
    let key = read_text(&mut rest)?;
    let content_type = read_text(&mut rest)?;
    let payload = read_part(&mut rest)??;
    let mut headers = BTreeMap::new();
    while !rest.is_empty() {
        let (name, value) = (read_text(&mut rest)??, read_text(&mut rest)??);
        headers.insert((*name).to_owned(), (*value).to_owned());
    }
    let delay = Duration::ZERO;
    Some(QueueItem { id, tenant, topic, key, payload, content_type, headers, delay })
}

fn read_text(rest: &mut Bytes) -> Option<Option<Arc<str>>> {
    let Some(bytes) = read_part(rest)? else { return Some(None) };
    std::str::from_utf8(&bytes).ok().map(|text| Some(text.into()))
}

fn read_part(rest: &mut Bytes) -> Option<Option<Bytes>> {
    if rest.first() == Some(&b'-') {
        let _ = rest.split_to(1);
        return Some(None);
    }
    let colon = rest.iter().take(20).position(|byte| *byte == b':')?;
    let length: usize = std::str::from_utf8(&rest[..colon]).ok()?.parse().ok()?;
    let _ = rest.split_to(colon + 1);
    (length <= rest.len()).then(|| Some(rest.split_to(length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_is_decoded_as_it_was_encoded() {
        let tenant = Tenant::default().scoped("ab").unwrap();
        let bare = QueueItem::new(&tenant, "", Bytes::new());
        let every_byte = Bytes::from((0..=255).collect::<Vec<u8>>());
        let full =
            QueueItem::new(&tenant, "a:b", every_byte).key("").content_type("3:x").header("-", "");
        for item in [bare, full] {
            assert!(decode(item.id, encode(&item)).as_ref() == Some(&item));
        }
    }

    #[test]
    fn item_that_was_cut_is_refused() {
        let whole =
            encode(&QueueItem::new(&Tenant::default(), "topic", "payload").header("n", "v"));
        for end in 0..whole.len() - 6 {
            let cut = decode(ItemId::fresh(), whole[..end].to_vec());
            assert!(cut.is_none(), "cut at {end}");
        }
        assert!(decode(ItemId::fresh(), b"99999999999999999999:x".to_vec()).is_none());
    }
}
