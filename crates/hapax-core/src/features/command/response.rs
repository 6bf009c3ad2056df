use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::Serialize;

/// The response of a command, stored byte for byte: status, headers and body.
///
/// ```
/// use hapax_core::command::StoredResponse;
/// let response = StoredResponse {
///     status: 201,
///     headers: vec![("location".into(), "/orders/17".into())],
///     body: vec![0, 159, 146, 150].into(),
/// };
/// assert_eq!(StoredResponse::decode(response.encode()).unwrap(), response);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResponse {
    /// The HTTP status, or any other number.
    pub status: u16,
    /// Names and values in order; repeated names are repeated.
    pub headers: Vec<(String, Bytes)>,
    /// The body.
    pub body: Bytes,
}

/// A stored response that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stored answer cannot be read: {0}")]
pub struct MalformedResponse(&'static str);

/// The first byte of the stored form: its version.
const FORM: u8 = 1;

impl StoredResponse {
    /// A 200 with this value as JSON.
    pub fn json(value: &impl Serialize) -> serde_json::Result<Self> {
        let headers = vec![("content-type".to_owned(), "application/json".into())];
        Ok(Self { status: 200, headers, body: serde_json::to_vec(value)?.into() })
    }

    /// The stored form: `1`, the status (u16), the number of headers (u16), for each header the
    /// length of its name (u16), the name, the length of its value (u32) and the value; all numbers
    /// big-endian; the rest is the body.
    pub fn encode(&self) -> Bytes {
        let headers: usize = self.headers.iter().map(|(n, v)| n.len() + v.len() + 6).sum();
        let mut out = BytesMut::with_capacity(5 + headers + self.body.len());
        out.put_u8(FORM);
        out.put_u16(self.status);
        out.put_u16(self.headers.len() as u16);
        for (name, value) in &self.headers {
            out.put_u16(name.len() as u16);
            out.put_slice(name.as_bytes());
            out.put_u32(value.len() as u32);
            out.put_slice(value);
        }
        out.put_slice(&self.body);
        out.freeze()
    }

    /// Whether the stored form has room for its headers.
    pub(super) fn is_storable(&self) -> bool {
        let most = usize::from(u16::MAX);
        self.headers.len() <= most && self.headers.iter().all(|(name, _)| name.len() <= most)
    }

    /// Reads the stored form.
    pub fn decode(mut stored: Bytes) -> Result<Self, MalformedResponse> {
        const SHORT: MalformedResponse = MalformedResponse("it ends too early");
        if stored.try_get_u8().map_err(|_| SHORT)? != FORM {
            return Err(MalformedResponse("it was written by another version, or not by hapax"));
        }
        let status = stored.try_get_u16().map_err(|_| SHORT)?;
        let count = stored.try_get_u16().map_err(|_| SHORT)?;
        let mut headers = Vec::new();
        for _ in 0..count {
            let length = usize::from(stored.try_get_u16().map_err(|_| SHORT)?);
            let name = take(&mut stored, length).ok_or(SHORT)?;
            let name = String::from_utf8(name.into())
                .map_err(|_| MalformedResponse("a name is no text"))?;
            let length = stored.try_get_u32().map_err(|_| SHORT)? as usize;
            headers.push((name, take(&mut stored, length).ok_or(SHORT)?));
        }
        Ok(Self { status, headers, body: stored })
    }
}

fn take(from: &mut Bytes, length: usize) -> Option<Bytes> {
    (length <= from.len()).then(|| from.split_to(length))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stored_response_is_decoded_as_encoded(
            status: u16,
            headers in prop::collection::vec(("[a-z-]{0,20}", prop::collection::vec(any::<u8>(), 0..50)), 0..5),
            body: Vec<u8>,
        ) {
            let headers = headers.into_iter().map(|(n, v)| (n, v.into())).collect();
            let response = StoredResponse { status, headers, body: body.into() };
            prop_assert_eq!(StoredResponse::decode(response.encode()).unwrap(), response);
        }

        #[test]
        fn stored_response_decoding_never_panics(bytes: Vec<u8>) {
            let _ = StoredResponse::decode(bytes.into());
        }
    }
}
