use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::claims::ClaimState;
use hapax_core::{
    ClaimRequest, ClaimStep, ClaimView, Claimed, Claims, Fence, Fingerprint, GiveBack, Key,
    OnUnknown, Step, StoreResult, Ticket, Token, Watch,
};
use redis::Value;

use crate::client::{ScriptCall, ScriptReply, read, unexpected_reply};
use crate::script::{CLAIM, EXTEND, FAIL, LOOK, RELEASE, SETTLE, script_millis};
use crate::store::RedisStore;

/// The lease reported for a foreign program's lock that has no expiry.
const ENDLESS: Duration = Duration::from_secs(3600);

#[async_trait]
impl Claims for RedisStore {
    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> StoreResult<Claimed> {
        let (name, digest) = (self.names.of(key).name, key.digest());
        let is_probably_settled = self.settled_keys.contains(digest);
        let claimed = self.client.within_timeout(async |deadline| {
            if is_probably_settled && let Some(settled) = self.read_settled(&name, ask).await? {
                return Ok(settled);
            }
            let lease = script_millis(ask.lease).max(1);
            let retention = script_millis(ask.retention);
            let (unit, ttl) = match lease + retention {
                ms if ms % 1000 == 0 => ("EX", ms / 1000),
                ms => ("PX", ms),
            };
            let takeover = if ask.on_unknown == OnUnknown::TakeOver { "1" } else { "0" };
            let args = [
                &*row_start(&ask.token),
                &row_end(lease, retention, ask.fingerprint.as_ref()),
                unit,
                &ttl.to_string(),
                takeover,
            ];
            let (keys, args) = ([&*name], args.map(str::as_bytes));
            let reply = self.client.call_until(ScriptCall::new(&CLAIM, &keys, &args), deadline);
            claimed(reply.await?.value, ask)
        });
        let claimed = claimed.await?;
        match (&claimed, is_probably_settled) {
            (Claimed::Settled { .. }, false) => self.settled_keys.insert(digest),
            (Claimed::Settled { .. }, true) | (_, false) => {}
            (_, true) => self.settled_keys.remove(digest),
        }
        Ok(claimed)
    }

    async fn step(&self, key: &Key, token: &Token, step: ClaimStep) -> StoreResult<Step> {
        let (row_start, value) = (row_start(token), Bytes::new());
        let settles = matches!(step, ClaimStep::Settle(_));
        let (script, value) = match step {
            ClaimStep::Extend(lease) => {
                let lease = script_millis(lease).max(1).to_string();
                let args = [row_start.as_bytes(), lease.as_bytes()];
                return read_step(self.run(&EXTEND, key, &args).await?);
            }
            ClaimStep::Settle(value) => (&SETTLE, value),
            ClaimStep::GiveBack(GiveBack::Forget) => (&RELEASE, value),
            ClaimStep::GiveBack(GiveBack::Keep) => (&FAIL, value),
        };
        let mut reply = self.run_and_wake(script, key, &row_start, &value).await?;
        match (reply.first_error.take(), read_step(reply)?) {
            // The step may leave no row. Where the reply to a first attempt was lost and the second
            // finds no row, it is unknown whether the first one removed it.
            (Some(error), Step::Lost) => Err(error),
            (_, step) => {
                if settles && step != Step::Lost {
                    self.settled_keys.insert(key.digest());
                }
                Ok(step)
            }
        }
    }

    async fn look(&self, key: &Key) -> StoreResult<Option<ClaimView>> {
        self.look_with(key, &[]).await
    }

    fn watch(&self, key: &Key) -> Watch {
        self.watch_key(key)
    }
}

impl RedisStore {
    /// Reads a settled claim with plain commands, which cost the server much less than the script. `None` where the
    /// script has to decide: where the claim is not settled, has another fingerprint, or could not be read.
    ///
    /// The value and the TTL are read one after the other. A settled row changes only by its removal, and the server
    /// does not return a row whose TTL has passed.
    async fn read_settled(&self, name: &str, ask: &ClaimRequest) -> StoreResult<Option<Claimed>> {
        let read =
            self.client.read_plainly(async |connection| connection.read_with_ttl(name).await);
        let Some(Some((row, ttl))) = read.await? else { return Ok(None) };
        let Some((retention, value)) = settled_value(row, ask.fingerprint.as_ref()) else {
            return Ok(None);
        };
        // A row that was written in between would have another TTL.
        let expires_in = Duration::from_millis(ttl);
        Ok((1..=retention).contains(&ttl).then_some(Claimed::Settled { value, expires_in }))
    }

    /// As [`Claims::look`], without the value of a settled claim.
    pub(crate) async fn look_without_value(&self, key: &Key) -> StoreResult<Option<ClaimView>> {
        self.look_with(key, &[b"1"]).await
    }

    async fn look_with(&self, key: &Key, args: &[&[u8]]) -> StoreResult<Option<ClaimView>> {
        let reply = self.run(&LOOK, key, args).await?;
        reply.read::<Option<Vec<Value>>>()?.map(view).transpose()
    }
}

/// The start of a row, up to its phase. Scripts compare it to find out whether the token owns the claim.
fn row_start(token: &Token) -> String {
    format!("hapax1 {} {} ", token.as_str().len(), token.as_str())
}

/// The end of a new row, after its times. `lua/claim_row.lua` describes the whole row.
fn row_end(lease: u64, retention: u64, fingerprint: Option<&Fingerprint>) -> String {
    match fingerprint.map(Fingerprint::as_str) {
        Some(text) => format!("{lease} {retention} {}\n={text}", text.len() + 1),
        None => format!("{lease} {retention} 0\n"),
    }
}

/// The retention in ms and the value of a row (`lua/claim_row.lua`) that is settled with this fingerprint.
fn settled_value(row: Vec<u8>, fingerprint: Option<&Fingerprint>) -> Option<(u64, Bytes)> {
    let head_end = row.iter().position(|&byte| byte == b'\n')?;
    let (head, rest) = (str::from_utf8(&row[..head_end]).ok()?, &row[head_end + 1..]);
    let (token_size, head) = head.strip_prefix("hapax1 ")?.split_once(' ')?;
    let fields = head.get(token_size.parse().ok()?..)?.strip_prefix(" S ")?;
    let mut fields = fields.rsplit(' ');
    let fingerprint_size: usize = fields.next()?.parse().ok()?;
    let retention = fields.next()?.parse().ok()?;
    let (stored, _) = rest.split_at_checked(fingerprint_size)?;
    let is_same = match fingerprint {
        Some(asked) => stored.strip_prefix(b"=") == Some(asked.as_str().as_bytes()),
        None => stored.is_empty(),
    };
    is_same.then(|| (retention, Bytes::from(row).slice(head_end + 1 + fingerprint_size..)))
}

fn read_step(reply: ScriptReply) -> StoreResult<Step> {
    Ok(reply.read::<Option<u64>>()?.map_or(Step::Lost, |fence| Step::Done(Fence(fence))))
}

fn claimed(reply: Value, ask: &ClaimRequest) -> StoreResult<Claimed> {
    let grant = |fence, attempt| Claimed::Granted {
        ticket: Ticket { token: ask.token.clone(), fence: Fence(fence) },
        attempt,
    };
    // For a vacant key, the common case, the script returns the fence alone.
    let Value::Array(fields) = reply else {
        return Ok(grant(read(reply)?, 1));
    };
    let mut fields = ReplyFields(fields.into_iter());
    Ok(match fields.next::<String>()?.as_str() {
        "granted" => grant(fields.next()?, fields.next()?),
        "busy" => Claimed::Busy { lease_left: fields.lease_left()? },
        "settled" => {
            let expires_in = fields.duration()?;
            Claimed::Settled { value: fields.bytes()?, expires_in }
        }
        "mismatch" => Claimed::Mismatch,
        "unknown" => Claimed::Unknown { since: fields.duration()? },
        _ => return Err(unexpected_reply()),
    })
}

fn view(reply: Vec<Value>) -> StoreResult<ClaimView> {
    let mut fields = ReplyFields(reply.into_iter());
    let phase: String = fields.next()?;
    if phase == "foreign" {
        let state = ClaimState::Pending { lease_left: fields.lease_left()? };
        return Ok(ClaimView {
            state,
            fence: None,
            attempt: 1,
            granted_ago: None,
            retention: None,
            fingerprint: None,
            token: None,
        });
    }
    let fence = Some(Fence(fields.next()?));
    let attempt = fields.next()?;
    let granted_ago = Some(fields.duration()?);
    let lease_left: i64 = fields.next()?;
    let expires_in = fields.duration()?;
    let value = fields.bytes()?;
    let state = match phase.as_str() {
        "S" => ClaimState::Settled { value, expires_in },
        "F" => ClaimState::Failed { expires_in },
        "P" if lease_left > 0 => ClaimState::Pending { lease_left: duration(lease_left) },
        "P" => ClaimState::Unknown { since: duration(-lease_left), expires_in },
        _ => return Err(unexpected_reply()),
    };
    let fingerprint = fields.next::<String>()?.strip_prefix('=').and_then(Fingerprint::new);
    let token = Some(Token::presented(&fields.next::<String>()?));
    let retention = Some(fields.duration()?);
    Ok(ClaimView { state, fence, attempt, granted_ago, retention, fingerprint, token })
}

fn duration(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// The fields of a script's reply, in order.
struct ReplyFields(std::vec::IntoIter<Value>);

impl ReplyFields {
    fn next<T: redis::FromRedisValue>(&mut self) -> StoreResult<T> {
        self.0.next().map_or_else(|| Err(unexpected_reply()), read)
    }

    fn duration(&mut self) -> StoreResult<Duration> {
        self.next().map(duration)
    }

    /// The rest of a lease; Redis returns -1 for a foreign key without an expiry.
    fn lease_left(&mut self) -> StoreResult<Duration> {
        let ms: i64 = self.next()?;
        Ok(if ms == -1 { ENDLESS } else { duration(ms) })
    }

    fn bytes(&mut self) -> StoreResult<Bytes> {
        self.next::<Vec<u8>>().map(Bytes::from)
    }
}

#[cfg(test)]
mod tests {
    use hapax_core::{Operation, Tenant};
    use hapax_testkit::Redis;

    use super::*;
    use crate::RedisConfig;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn claim_of_a_key_settled_here_runs_no_script() {
        let redis = Redis::with(&["--appendonly", "no"]);
        let config = RedisConfig::new(&redis.url()).unwrap().timeout(MINUTE);
        let store = RedisStore::open(config).unwrap();
        let key = Key::command(&Tenant::default(), Operation("pay"), "k").unwrap();
        let ask = |body: &[u8]| {
            let fingerprint = Some(Fingerprint::of(&[body]));
            ClaimRequest::new(MINUTE).retention(MINUTE).fingerprint(fingerprint)
        };
        let granted = |claimed| match claimed {
            Claimed::Granted { ticket, attempt: 1 } => ticket,
            other => panic!("{other:?}"),
        };
        let first = granted(store.claim(&key, &ask(b"tea")).await.unwrap());
        let value = Bytes::from("line\nline");
        let settled = store.settle(&key, &first.token, value.clone()).await.unwrap();
        assert_eq!(settled, Step::Done(first.fence));

        redis.cli(&["CONFIG", "RESETSTAT"]);
        match store.claim(&key, &ask(b"tea")).await.unwrap() {
            Claimed::Settled { value: stored, expires_in } => {
                assert_eq!(stored, value);
                assert!(expires_in > Duration::ZERO && expires_in <= MINUTE);
            }
            other => panic!("{other:?}"),
        }
        let stats = redis.cli(&["INFO", "commandstats"]);
        assert!(stats.contains("cmdstat_get:calls=1,") && !stats.contains("cmdstat_eval"));

        assert_eq!(store.claim(&key, &ask(b"coffee")).await.unwrap(), Claimed::Mismatch);
        redis.cli(&["FLUSHALL"]);
        store.settled_keys.insert(key.digest());
        let second = granted(store.claim(&key, &ask(b"tea")).await.unwrap());
        assert!(second.fence > first.fence);
    }

    #[test]
    fn settled_value_is_read_from_settled_rows_alone() {
        let tea = Fingerprint::of(&[b"tea"]);
        let row = |token: &str, phase: &str, fingerprint: &str, value: &str| {
            let (token_size, size) = (token.len(), fingerprint.len());
            let times = "17 1 1000 2000 30000 60000";
            let row =
                format!("hapax1 {token_size} {token} {phase} {times} {size}\n{fingerprint}{value}");
            row.into_bytes()
        };
        let same = format!("={}", tea.as_str());
        let settled = row("a b", "S", &same, "x\ny");
        assert_eq!(settled_value(settled.clone(), Some(&tea)), Some((60_000, "x\ny".into())));
        assert_eq!(settled_value(settled.clone(), None), None);
        assert_eq!(settled_value(settled[..40].to_vec(), Some(&tea)), None);
        let plain = row("t", "S", "", "");
        assert_eq!(settled_value(plain.clone(), None), Some((60_000, Bytes::new())));
        assert_eq!(settled_value(plain, Some(&tea)), None);
        for phase in ["P", "F", "SS", ""] {
            assert_eq!(settled_value(row("t", phase, &same, "x"), Some(&tea)), None, "{phase}");
        }
        assert_eq!(settled_value(b"foreign".to_vec(), None), None);
    }
}
