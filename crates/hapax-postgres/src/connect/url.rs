//! Parses the URL into the driver's settings.

use std::path::PathBuf;
use std::time::Duration;

use hapax_core::StoreResult;
use tokio_postgres::config::SslMode;

use crate::PostgresConfig;
use crate::connect::tls::{ClientIdentity, TlsOptions, TlsTrust};
use crate::error::incompatible;

const SHAPE: &str = "the PostgreSQL URL cannot be understood; it is postgres://user:password@host:port/database?options, \
     with special characters in the password percent-encoded";

/// Everything that is needed to connect.
#[derive(Clone)]
pub(crate) struct ConnectTarget {
    pub(crate) driver: tokio_postgres::Config,
    pub(crate) tls: tokio_postgres_rustls::MakeRustlsConnect,
    pub(crate) transaction_pooler: bool,
    pub(crate) schema: Option<String>,
}

pub(crate) fn connect_target(config: &PostgresConfig) -> StoreResult<ConnectTarget> {
    let (url, options) = split_options(&config.url)?;
    // The driver's own message is left out: it may quote what it did not understand.
    let mut driver: tokio_postgres::Config = url.parse().map_err(|_| incompatible(SHAPE))?;
    if driver.get_hosts().is_empty() && driver.get_hostaddrs().is_empty() {
        return Err(incompatible("the PostgreSQL URL names no host"));
    }
    let schema = config.schema.clone().map(validate_schema).transpose()?;
    let transaction_pooler = config.transaction_pooler || options.transaction_pooler;
    if transaction_pooler && schema.is_some() {
        return Err(incompatible(
            "a schema cannot be chosen through a transaction pooler; \
             use ALTER ROLE … SET search_path instead",
        ));
    }
    driver.ssl_mode(options.tls.mode);
    if driver.get_application_name().is_none() {
        driver.application_name("hapax");
    }
    if driver.get_connect_timeout().is_none() {
        // The timeout counts per host, and the last host must still get its turn.
        let hosts = driver.get_hosts().len().max(1) as u32;
        driver.connect_timeout(config.timeout / hosts);
    }
    if !transaction_pooler {
        let settings = session_settings(driver.get_options(), config.timeout, schema.as_deref());
        driver.options(settings);
    }
    Ok(ConnectTarget { driver, tls: options.tls.connector()?, transaction_pooler, schema })
}

/// The options of the URL that the driver does not know.
#[derive(Default)]
struct UrlOptions {
    tls: TlsOptions,
    transaction_pooler: bool,
}

fn split_options(url: &str) -> StoreResult<(String, UrlOptions)> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(incompatible(SHAPE));
    }
    // A password may contain a question mark, so options begin after the last `@`.
    let host = url.rfind('@').unwrap_or(0);
    let Some(mark) = url[host..].find('?').map(|at| host + at) else {
        return Ok((url.to_owned(), UrlOptions::default()));
    };
    let mut options = UrlOptions::default();
    let mut mode = None;
    let mut driver_options = Vec::new();
    for pair in url[mark + 1..].split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(|| incompatible(SHAPE))?;
        match name {
            "sslmode" => mode = Some(value),
            "sslrootcert" if value == "system" => options.tls.trust = TlsTrust::System,
            "sslrootcert" => options.tls.trust = TlsTrust::File(decode_path(value)?),
            "sslcert" => {
                options.tls.identity.get_or_insert_default().certificate = decode_path(value)?
            }
            "sslkey" => options.tls.identity.get_or_insert_default().key = decode_path(value)?,
            "pgbouncer" => options.transaction_pooler = value == "true",
            _ => driver_options.push(pair),
        }
    }
    options.tls.set_mode(mode.unwrap_or("prefer"))?;
    Ok((format!("{}?{}", &url[..mark], driver_options.join("&")), options))
}

/// Session settings that end a statement on the server before the caller's timeout, and that keep the
/// planner to the plans that the statements are written for, whatever a new table's statistics say.
fn session_settings(given: Option<&str>, timeout: Duration, schema: Option<&str>) -> String {
    let timeout = timeout.as_millis().max(4);
    let mut options = given.map(|given| format!("{given} ")).unwrap_or_default();
    options.push_str(&format!(
        "-c statement_timeout={} -c lock_timeout={} -c idle_in_transaction_session_timeout={timeout} \
         -c default_transaction_isolation=read\\ committed -c client_min_messages=warning \
         -c jit=off -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off",
        timeout * 3 / 4,
        timeout / 2,
    ));
    if let Some(schema) = schema {
        options.push_str(&format!(" -c search_path={schema}"));
    }
    options
}

fn validate_schema(schema: String) -> StoreResult<String> {
    let plain = schema.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    let begins = schema.bytes().next().is_some_and(|b| !b.is_ascii_digit());
    if plain && begins && schema.len() <= 63 {
        return Ok(schema);
    }
    Err(incompatible("a schema takes 1 to 63 lower-case letters, digits and underscores"))
}

fn decode_path(value: &str) -> StoreResult<PathBuf> {
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

impl TlsOptions {
    /// As in libpq, only the `verify-` modes check the certificate, and `require` does so if a root
    /// certificate is named.
    fn set_mode(&mut self, mode: &str) -> StoreResult<()> {
        let has_root = !matches!(self.trust, TlsTrust::Anyone);
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
            "verify-ca" | "verify-full" if !has_root => self.trust = TlsTrust::System,
            "disable" | "prefer" | "allow" => self.trust = TlsTrust::Anyone,
            _ => {}
        }
        match &self.identity {
            Some(ClientIdentity { certificate, key })
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
    use hapax_core::StoreError;

    fn refused(url: &str) -> String {
        match connect_target(&PostgresConfig::new(url)) {
            Err(error @ StoreError::Incompatible { .. }) => error.to_string(),
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("accepted"),
        }
    }

    #[test]
    fn malformed_url_error_leaves_out_the_password() {
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
    fn sslmode_understands_the_modes_of_libpq() {
        for (mode, expected) in [
            ("disable", SslMode::Disable),
            ("prefer", SslMode::Prefer),
            ("require", SslMode::Require),
            ("verify-ca", SslMode::Require),
            ("verify-full", SslMode::Require),
        ] {
            let url =
                format!("postgres://u@h/d?sslmode={mode}&connect_timeout=1&sslrootcert=system");
            let target = connect_target(&PostgresConfig::new(url)).map_err(|e| e.to_string());
            assert_eq!(target.unwrap().driver.get_ssl_mode(), expected, "{mode}");
        }
    }

    #[test]
    fn options_of_the_url_are_kept() {
        let url = "postgres://u@h/d?options=-c%20search_path%3Dapp";
        let target = connect_target(&PostgresConfig::new(url)).map_err(|e| e.to_string()).unwrap();
        let options = target.driver.get_options().unwrap();
        assert!(options.starts_with("-c search_path=app -c statement_timeout=1500 "), "{options}");
    }

    #[test]
    fn transaction_pooler_gets_no_session_settings() {
        let target = connect_target(&PostgresConfig::new("postgres://u@h/d?pgbouncer=true"))
            .map_err(|e| e.to_string());
        assert_eq!(target.unwrap().driver.get_options(), None);
    }
}
