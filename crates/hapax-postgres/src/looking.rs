use hapax_core::{Key, View, machine};
use tokio_postgres::types::Type;

use crate::error::Failure;
use crate::row;
use crate::session::{Session, Sql};

const LOOK: Sql = Sql {
    text: include_str!("sql/look.sql"),
    types: &[Type::TEXT, Type::TEXT, Type::TEXT, Type::TEXT],
};

pub(crate) async fn look<S: Session>(session: &mut S, key: &Key) -> Result<Option<View>, Failure> {
    let (tenant, kind) = (key.tenant().as_str(), key.kind().as_str());
    let rows = session.rows(&LOOK, &[&tenant, &kind, &key.scope(), &key.name()]).await?;
    let Some(found) = rows.first() else { return Ok(None) };
    Ok(machine::look(row::claim(found)?.as_ref(), row::timestamp(found, "now")?))
}
