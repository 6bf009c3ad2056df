use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::claims::State;
use hapax_core::{
    Ask, Claimed, Claims, Fence, Fingerprint, GiveBack, Key, OnUnknown, Step, StoreError, Ticket,
    Token, View, Watch, millis,
};
use redis::Value;

use crate::calls::{Answer, read, unexpected};
use crate::script::{CLAIM, EXTEND, FORGET, KEEP, LOOK, SETTLE};
use crate::store::RedisStore;

/// Three hundred years: longer than anybody means, and still exact in Lua's numbers.
const LONGEST: u64 = 10_000_000_000_000;
/// What is said of a lock that a foreign writer took for ever.
const ENDLESS: Duration = Duration::from_secs(3600);

#[async_trait]
impl Claims for RedisStore {
    async fn claim(&self, key: &Key, ask: &Ask) -> Result<Claimed, StoreError> {
        let lease = whole_millis(ask.lease).max(1);
        let retention = whole_millis(ask.retention);
        let (unit, ttl) = match lease + retention {
            ms if ms % 1000 == 0 => ("EX", ms / 1000),
            ms => ("PX", ms),
        };
        let takeover = if ask.on_unknown == OnUnknown::TakeOver { "1" } else { "0" };
        let args = [
            &*mark(&ask.token),
            &tail(lease, retention, ask.fingerprint.as_ref()),
            unit,
            &ttl.to_string(),
            takeover,
        ];
        let answer = self.run(&CLAIM, key, &args.map(str::as_bytes)).await?;
        claimed(answer.value, ask)
    }

    async fn extend(&self, key: &Key, token: &Token, lease: Duration) -> Result<Step, StoreError> {
        let lease = whole_millis(lease).max(1).to_string();
        step(self.run(&EXTEND, key, &[mark(token).as_bytes(), lease.as_bytes()]).await?)
    }

    async fn settle(&self, key: &Key, token: &Token, value: Bytes) -> Result<Step, StoreError> {
        decided(self.run_and_wake(&SETTLE, key, &mark(token), &value).await?)
    }

    async fn give_back(&self, key: &Key, token: &Token, how: GiveBack) -> Result<Step, StoreError> {
        let script = match how {
            GiveBack::Forget => &FORGET,
            GiveBack::Keep => &KEEP,
        };
        decided(self.run_and_wake(script, key, &mark(token), &[]).await?)
    }

    async fn look(&self, key: &Key) -> Result<Option<View>, StoreError> {
        let answer = self.run(&LOOK, key, &[]).await?;
        answer.read::<Option<Vec<Value>>>()?.map(view).transpose()
    }

    fn watch(&self, key: &Key) -> Watch {
        self.watched(key)
    }
}

fn whole_millis(time: Duration) -> u64 {
    millis(time).min(LONGEST)
}

/// The start of a row that belongs to this token.
fn mark(token: &Token) -> String {
    format!("hapax1 {} {} ", token.as_str().len(), token.as_str())
}

/// The end of a new row, after its times.
fn tail(lease: u64, retention: u64, fingerprint: Option<&Fingerprint>) -> String {
    match fingerprint.map(Fingerprint::as_str) {
        Some(text) => format!("{lease} {retention} {}\n={text}", text.len() + 1),
        None => format!("{lease} {retention} 0\n"),
    }
}

fn step(answer: Answer) -> Result<Step, StoreError> {
    Ok(answer.read::<Option<u64>>()?.map_or(Step::Lost, |fence| Step::Done(Fence(fence))))
}

/// A step that may leave nothing behind: a give-back that forgets, a settle of what is not kept. What
/// was forgotten cannot be recognised: nobody knows whether the first of two calls did it.
fn decided(mut answer: Answer) -> Result<Step, StoreError> {
    match (answer.doubt.take(), step(answer)?) {
        (Some(doubt), Step::Lost) => Err(doubt),
        (_, step) => Ok(step),
    }
}

fn claimed(answer: Value, ask: &Ask) -> Result<Claimed, StoreError> {
    let grant = |fence, attempt| Claimed::Granted {
        ticket: Ticket { token: ask.token.clone(), fence: Fence(fence) },
        attempt,
    };
    // A vacant key is the common case, and answered with the fence alone.
    let Value::Array(fields) = answer else {
        return Ok(grant(read(answer)?, 1));
    };
    let mut fields = Fields(fields.into_iter());
    Ok(match fields.next::<String>()?.as_str() {
        "granted" => grant(fields.next()?, fields.next()?),
        "busy" => Claimed::Busy { lease_left: fields.left()? },
        "settled" => {
            let expires_in = fields.time()?;
            Claimed::Settled { value: fields.bytes()?, expires_in }
        }
        "mismatch" => Claimed::Mismatch,
        "unknown" => Claimed::Unknown { since: fields.time()? },
        _ => return Err(unexpected()),
    })
}

fn view(answer: Vec<Value>) -> Result<View, StoreError> {
    let mut fields = Fields(answer.into_iter());
    let phase: String = fields.next()?;
    if phase == "foreign" {
        let state = State::Pending { lease_left: fields.left()? };
        let (fence, granted_ago, fingerprint, token) = (None, None, None, None);
        return Ok(View { state, fence, attempt: 1, granted_ago, fingerprint, token });
    }
    let fence = Some(Fence(fields.next()?));
    let attempt = fields.next()?;
    let granted_ago = Some(fields.time()?);
    let lease_left: i64 = fields.next()?;
    let expires_in = fields.time()?;
    let value = fields.bytes()?;
    let state = match phase.as_str() {
        "S" => State::Settled { value, expires_in },
        "F" => State::Failed { expires_in },
        "P" if lease_left > 0 => State::Pending { lease_left: positive(lease_left) },
        "P" => State::Unknown { since: positive(-lease_left), expires_in },
        _ => return Err(unexpected()),
    };
    let fingerprint = fields.next::<String>()?.strip_prefix('=').and_then(Fingerprint::new);
    let token = Some(Token::presented(&fields.next::<String>()?));
    Ok(View { state, fence, attempt, granted_ago, fingerprint, token })
}

fn positive(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// The parts of a script's answer, in order.
struct Fields(std::vec::IntoIter<Value>);

impl Fields {
    fn next<T: redis::FromRedisValue>(&mut self) -> Result<T, StoreError> {
        self.0.next().map_or_else(|| Err(unexpected()), read)
    }

    fn time(&mut self) -> Result<Duration, StoreError> {
        self.next().map(positive)
    }

    /// What is left of a lease. Redis says -1 where a foreign key has no end.
    fn left(&mut self) -> Result<Duration, StoreError> {
        let ms: i64 = self.next()?;
        Ok(if ms == -1 { ENDLESS } else { positive(ms) })
    }

    fn bytes(&mut self) -> Result<Bytes, StoreError> {
        self.next::<Vec<u8>>().map(Bytes::from)
    }
}
