use hapax_core::{Key, List, Page, machine};
use tokio_postgres::types::Type;

use crate::error::Failure;
use crate::row;
use crate::session::{Session, Sql};

const LIST: Sql = Sql {
    text: include_str!("sql/list.sql"),
    types: &[Type::TEXT, Type::TEXT, Type::TEXT, Type::TEXT, Type::TEXT, Type::INT8],
};

/// One page of claims, in the order of their keys.
pub(crate) async fn list<S: Session>(session: &mut S, list: &List) -> Result<Page, Failure> {
    let after = list.after.as_deref().and_then(Key::from_canonical);
    let (tenant, scope, name) =
        after.as_ref().map_or(("", "", ""), |key| (key.tenant().as_str(), key.scope(), key.name()));
    let (mine, kind) = (list.tenant.as_str(), list.kind.as_str());
    let at_most = i64::from(list.at_most);
    let rows = session.rows(&LIST, &[&mine, &kind, &tenant, &scope, &name, &at_most]).await?;
    let mut page = Page::default();
    for found in &rows {
        let text = |column| found.try_get::<&str>(column);
        let key = Key::stored(text("tenant")?, text("kind")?, text("scope")?, text("name")?);
        let (Some(key), Some(claim)) = (key, row::claim(found)?) else { continue };
        page.next = Some(key.canonical());
        let listed = machine::listed(key, &claim, row::timestamp(found, "now")?);
        page.claims.extend(listed.filter(|listed| list.shows(listed)));
    }
    page.next = page.next.filter(|_| rows.len() as i64 == at_most);
    Ok(page)
}
