//! How many requests of one tenant are answered at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use hapax::Tenant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::auth::Access;
use super::problem::{Problem, TOO_MANY};

/// One semaphore for each tenant; tenants come from the settings, so that there are no others.
pub(crate) struct InFlight(HashMap<Tenant, Arc<Semaphore>>);

impl InFlight {
    pub(crate) fn new(access: &Access, places: usize) -> Self {
        let tenants = access.tenants().into_iter();
        Self(tenants.map(|tenant| (tenant, Arc::new(Semaphore::new(places)))).collect())
    }

    /// A place for one more request.
    pub(crate) fn enter(&self, tenant: &Tenant) -> Result<OwnedSemaphorePermit, Problem> {
        let place = self.0.get(tenant).and_then(|places| places.clone().try_acquire_owned().ok());
        place.ok_or_else(|| {
            Problem::new(&TOO_MANY, "as many requests as are allowed are being answered")
                .retry_after(Duration::from_secs(1))
        })
    }
}
