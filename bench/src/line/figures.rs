//! The figures that the original bots were built for.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::Store;
use hapax_core::document::{Documents, MatchCondition};
use hapax_core::lock::Locks;
use hapax_workload::{BenchError, BenchOperation, Measurement};

use crate::raw::engine;

/// The record as the bookkeeping bot stores it.
const LAST_TRANSACTION: &str = r#"{"intent":"bookkeeping","日期":"2025-11-29","時間":"14:30","品項":"午餐","原幣別":"TWD","原幣金額":100.0,"匯率":1.0,"付款方式":"信用卡","交易ID":"20251129-143000","明細說明":"","分類":"飲食","專案":"日常","必要性":"必要","代墊狀態":"無","收款支付對象":"","附註":""}"#;
const HOUR: Duration = Duration::from_secs(3600);
const LOCK: Duration = Duration::from_secs(5);

/// One of the figures.
#[derive(Clone, Copy)]
pub(super) enum LineFigure {
    Lock,
    Get,
    Set,
}

impl LineFigure {
    pub(super) const ALL: [Self; 3] = [Self::Lock, Self::Get, Self::Set];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock, release",
            Self::Get => "get",
            Self::Set => "set",
        }
    }

    /// Taking and releasing a lock are measured together, so half of the time counts for one.
    pub(super) fn is_met(self, measured: &Measurement) -> bool {
        let (quick, often) = match self {
            Self::Lock => (measured.p95() / 2 < Duration::from_millis(1), 0.0),
            Self::Get => (measured.p95() < Duration::from_millis(50), 1000.0),
            Self::Set => (measured.p95() < Duration::from_millis(50), 500.0),
        };
        quick && measured.per_second() > often
    }

    pub(super) async fn operation(
        self,
        store: &Arc<dyn Store>,
    ) -> anyhow::Result<Arc<FigureOperation>> {
        let documents = Documents::new(store.clone());
        if matches!(self, Self::Get) {
            for user in 0..USERS {
                let json = LAST_TRANSACTION.into();
                documents.put_raw(&record(user), json, &MatchCondition::Any, Some(HOUR)).await?;
            }
        }
        Ok(Arc::new(FigureOperation { figure: self, locks: Locks::new(store.clone()), documents }))
    }
}

/// The number of users.
const USERS: usize = 1000;

fn record(user: usize) -> String {
    format!("user:Uf00d{user}:last_transaction")
}

pub(super) struct FigureOperation {
    figure: LineFigure,
    locks: Locks,
    documents: Documents,
}

#[async_trait]
impl BenchOperation for FigureOperation {
    async fn run(&self, task: usize, turn: u64) -> Result<(), BenchError> {
        match self.figure {
            // Each task is one user with one lock.
            LineFigure::Lock => {
                let key = format!("processing:user:Uf00d{task}");
                let ticket = self.locks.take(&key, LOCK, Duration::ZERO).await.map_err(engine)?;
                self.locks.release(&key, &ticket.token).await.map_err(engine)
            }
            LineFigure::Get => {
                let found = self.documents.get_raw(&record(user(task, turn))).await;
                match found.map_err(engine)? {
                    Some(_) => Ok(()),
                    None => Err(BenchError::Unexpected("a record is missing")),
                }
            }
            LineFigure::Set => {
                let (name, json) = (record(user(task, turn)), LAST_TRANSACTION.into());
                let stored = self.documents.put_raw(&name, json, &MatchCondition::Any, Some(HOUR));
                stored.await.map(drop).map_err(engine)
            }
        }
    }
}

fn user(task: usize, turn: u64) -> usize {
    (task * 31 + usize::try_from(turn).unwrap_or_default()) % USERS
}
