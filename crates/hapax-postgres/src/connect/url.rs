//! From a URL to the driver's own settings.

use std::path::PathBuf;
use std::time::Duration;

use hapax_core::StoreError;
use tokio_postgres::config::SslMode;

use crate::Config;
use crate::connect::tls::{Identity, Tls, Trust};
use crate::error::incompatible;

const SHAPE: &str = "the PostgreSQL URL cannot be understood; it is postgres://user:password@host:port/database?options, \
     with special characters in the password percent-encoded";

/// What the driver connects with.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) driver: tokio_postgres::Config,
    pub(crate) tls: tokio_postgres_rustls::MakeRustlsConnect,
    pub(crate) pooled: bool,
    pub(crate) schema: Option<String>,
}

pub(crate) fn target(config: &Config) -> Result<Target, StoreError> {
    let (url, own) = split(&config.url)?;
    // The driver's own message is left out: it may quote what it did not understand.
    let mut driver: tokio_postgres::Config = url.parse().map_err(|_| incompatible(SHAPE))?;
    if driver.get_hosts().is_empty() && driver.get_hostaddrs().is_empty() {
        return Err(incompatible("the PostgreSQL URL names no host"));
    }
    let schema = config.schema.clone().map(checked_schema).transpose()?;
    let pooled = config.pooled || own.pooled;
    if pooled && schema.is_some() {
        return Err(incompatible(
            "a schema cannot be chosen through a transaction pooler; \
             use ALTER ROLE … SET search_path instead",
        ));
    }
    driver.ssl_mode(own.tls.mode);
    if driver.get_application_name().is_none() {
        driver.application_name("hapax");
    }
    if driver.get_connect_timeout().is_none() {
        // It counts for each host; the next one must still get its turn.
        let hosts = driver.get_hosts().len().max(1) as u32;
        driver.connect_timeout(config.limit / hosts);
    }
    if !pooled {
        let options = options(driver.get_options(), config.limit, schema.as_deref());
        driver.options(options);
    }
    Ok(Target { driver, tls: own.tls.connector()?, pooled, schema })
}

/// What the driver does not know, and hapax handles.
struct Own {
    tls: Tls,
    pooled: bool,
}

fn split(url: &str) -> Result<(String, Own), StoreError> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(incompatible(SHAPE));
    }
    // A password may contain a question mark, so options begin after the last `@`.
    let host = url.rfind('@').unwrap_or(0);
    let Some(mark) = url[host..].find('?').map(|at| host + at) else {
        return Ok((url.to_owned(), Own { tls: Tls::default(), pooled: false }));
    };
    let mut own = Own { tls: Tls::default(), pooled: false };
    let mut mode = None;
    let mut left = Vec::new();
    for pair in url[mark + 1..].split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(|| incompatible(SHAPE))?;
        match name {
            "sslmode" => mode = Some(value),
            "sslrootcert" if value == "system" => own.tls.trust = Trust::System,
            "sslrootcert" => own.tls.trust = Trust::File(path(value)?),
            "sslcert" => own.tls.identity.get_or_insert_default().certificate = path(value)?,
            "sslkey" => own.tls.identity.get_or_insert_default().key = path(value)?,
            "pgbouncer" => own.pooled = value == "true",
            _ => left.push(pair),
        }
    }
    own.tls.choose(mode.unwrap_or("prefer"))?;
    Ok((format!("{}?{}", &url[..mark], left.join("&")), own))
}

/// Ends a statement on the server before the caller gives up on it, and keeps the plans that the
/// statements are written for whatever the statistics of a young table say.
fn options(given: Option<&str>, limit: Duration, schema: Option<&str>) -> String {
    let limit = limit.as_millis().max(4);
    let mut options = given.map(|given| format!("{given} ")).unwrap_or_default();
    options.push_str(&format!(
        "-c statement_timeout={} -c lock_timeout={} -c idle_in_transaction_session_timeout={limit} \
         -c default_transaction_isolation=read\\ committed -c client_min_messages=warning \
         -c jit=off -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off",
        limit * 3 / 4,
        limit / 2,
    ));
    if let Some(schema) = schema {
        options.push_str(&format!(" -c search_path={schema}"));
    }
    options
}

fn checked_schema(schema: String) -> Result<String, StoreError> {
    let plain = schema.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    let begins = schema.bytes().next().is_some_and(|b| !b.is_ascii_digit());
    if plain && begins && schema.len() <= 63 {
        return Ok(schema);
    }
    Err(incompatible("a schema takes 1 to 63 lower-case letters, digits and underscores"))
}

fn path(value: &str) -> Result<PathBuf, StoreError> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(incompatible(SHAPE));
        };
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).map(PathBuf::from).map_err(|_| incompatible(SHAPE))
}

impl Tls {
    /// What libpq means by these words: only the `verify-` ones look at the certificate, and
    /// `require` does so where an authority is named.
    fn choose(&mut self, mode: &str) -> Result<(), StoreError> {
        let named = !matches!(self.trust, Trust::Anyone);
        (self.mode, self.check_name) = match mode {
            "disable" => (SslMode::Disable, false),
            "prefer" | "allow" => (SslMode::Prefer, false),
            "require" | "verify-ca" => (SslMode::Require, false),
            "verify-full" => (SslMode::Require, true),
            _ => {
                return Err(incompatible(
                    "sslmode is disable, prefer, require, verify-ca or verify-full",
                ));
            }
        };
        match mode {
            "verify-ca" | "verify-full" if !named => self.trust = Trust::System,
            "disable" | "prefer" | "allow" => self.trust = Trust::Anyone,
            _ => {}
        }
        match &self.identity {
            Some(Identity { certificate, key })
                if certificate.as_os_str().is_empty() || key.as_os_str().is_empty() =>
            {
                Err(incompatible("sslcert and sslkey go together"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        match target(&Config::new(url)) {
            Err(error @ StoreError::Incompatible { .. }) => error.to_string(),
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("accepted"),
        }
    }

    #[test]
    fn a_malformed_url_is_refused_without_its_password() {
        for url in [
            "",
            "mysql://u:hunter2@h/d",
            "postgres://u:hunter2@h:port/d",
            "postgres://u:hunter2@h/d?sslmode=perhaps",
            "postgres://u:hunter2@h/d?no_such_option=1",
            "postgres://u:hunter2@h/d?sslmode",
            "postgres://u:hunter2@h/d?sslmode=verify-full&sslrootcert=/no/such/file",
            "postgres://u:hunter2@h/d?sslcert=/no/such/file",
            "postgres://u:hunter2@h/d?sslrootcert=%zz",
            "postgres:///d",
        ] {
            assert!(!refused(url).contains("hunter2"), "{url}");
        }
    }

    #[test]
    fn the_words_of_libpq_are_understood() {
        for (mode, expected) in [
            ("disable", SslMode::Disable),
            ("prefer", SslMode::Prefer),
            ("require", SslMode::Require),
            ("verify-ca", SslMode::Require),
            ("verify-full", SslMode::Require),
        ] {
            let url =
                format!("postgres://u@h/d?sslmode={mode}&connect_timeout=1&sslrootcert=system");
            let target = target(&Config::new(url)).map_err(|e| e.to_string());
            assert_eq!(target.unwrap().driver.get_ssl_mode(), expected, "{mode}");
        }
    }

    #[test]
    fn options_of_the_url_stay_beside_our_own() {
        let url = "postgres://u@h/d?options=-c%20search_path%3Dapp";
        let target = target(&Config::new(url)).map_err(|e| e.to_string()).unwrap();
        let options = target.driver.get_options().unwrap();
        assert!(options.starts_with("-c search_path=app -c statement_timeout=1500 "), "{options}");
    }

    #[test]
    fn a_pooler_gets_no_session_settings() {
        let target =
            target(&Config::new("postgres://u@h/d?pgbouncer=true")).map_err(|e| e.to_string());
        assert_eq!(target.unwrap().driver.get_options(), None);
    }
}
