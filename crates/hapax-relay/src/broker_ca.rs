//! `?ca=FILE` in a broker's URL: the certificate authority to trust.

use std::error::Error;
use std::fs;

use url::form_urlencoded;

use crate::sinks::EndpointConfigError;

/// Why a broker with another authority cannot be used. The driver's own text may name addresses.
pub(crate) const UNTRUSTED: &str =
    "the broker's TLS certificate is not trusted; `?ca=FILE` in its URL names another authority";

/// A PEM file that was read when the URL was parsed, so that a wrong path is an error at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BrokerCa {
    pub(crate) path: String,
    pub(crate) pem: String,
}

/// Takes the parameter `ca` out of a URL whose driver does not know it.
pub(crate) fn take_ca(url: &str) -> Result<(String, Option<BrokerCa>), EndpointConfigError> {
    let (address, fragment) = match url.split_once('#') {
        Some((address, fragment)) => (address, format!("#{fragment}")),
        None => (url, String::new()),
    };
    let Some((start, query)) = address.split_once('?') else {
        return Ok((url.to_owned(), None));
    };
    let (own, others): (Vec<_>, Vec<_>) =
        form_urlencoded::parse(query.as_bytes()).into_owned().partition(|(name, _)| name == "ca");
    let rest = form_urlencoded::Serializer::new(String::new()).extend_pairs(others).finish();
    let rest = if rest.is_empty() { rest } else { format!("?{rest}") };
    match &own[..] {
        [] => Ok((url.to_owned(), None)),
        [(_, path)] => Ok((format!("{start}{rest}{fragment}"), Some(read(path)?))),
        _ => Err(EndpointConfigError::new("`ca` is named twice")),
    }
}

fn read(path: &str) -> Result<BrokerCa, EndpointConfigError> {
    let unusable = |what| EndpointConfigError::new(format!("the `ca` file {path} {what}"));
    let pem = fs::read_to_string(path).map_err(|_| unusable("cannot be read"))?;
    if !pem.contains("BEGIN CERTIFICATE") {
        return Err(unusable("holds no certificate"));
    }
    Ok(BrokerCa { path: path.to_owned(), pem })
}

/// The error of a `ca` that would be ignored.
#[cfg(any(feature = "amqp", feature = "redis"))]
pub(crate) fn ca_without_tls(schemes: &str) -> EndpointConfigError {
    EndpointConfigError::new(format!("`ca` without TLS (use {schemes})"))
}

/// Whether a connection failed because the server's certificate was not accepted.
pub(crate) fn is_untrusted(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // Drivers wrap the error of the TLS library in several ways, and keep its text.
        if error.to_string().contains("invalid peer certificate") {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broker_ca_is_taken_out_of_the_url() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, "-----BEGIN CERTIFICATE-----").unwrap();
        let path = file.path().display().to_string();
        let url = format!("tls://a:1,b:2?x=1&ca={path}&y=%2F");
        let (url, ca) = take_ca(&url).unwrap();
        assert_eq!((url.as_str(), ca.unwrap().path), ("tls://a:1,b:2?x=1&y=%2F", path.clone()));
        let (url, _) = take_ca(&format!("amqps://h/%2f?ca={path}")).unwrap();
        assert_eq!(url, "amqps://h/%2f");
        let (url, _) = take_ca(&format!("rediss://h/?ca={path}#insecure")).unwrap();
        assert_eq!(url, "rediss://h/#insecure");
        for other in ["nats://a:1", "rediss://h/?protocol=resp3&x=a/b#insecure"] {
            assert_eq!(take_ca(other).unwrap(), (other.to_owned(), None));
        }
        assert!(take_ca(&format!("tls://a?ca={path}&ca={path}")).is_err());
        fs::write(&file, "no certificate").unwrap();
        for url in [&format!("tls://a?ca={path}"), "tls://a?ca=/no/such/file"] {
            let error = take_ca(url).unwrap_err().to_string();
            assert!(error.contains("`ca` file"), "{error}");
        }
    }
}
