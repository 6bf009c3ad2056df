//! Pages of claims for operators.

use hapax_core::{ClaimQuery, ClaimStatus, KeyKind, OpenClaims, Oversight, Store, Tenant};

use crate::{SERVER, client, open, pages_of};

/// A page once cost as much as all claims of the tenant and its scopes.
#[tokio::test]
async fn fault_29_list_reads_only_its_page() {
    let url = SERVER.database("list_pages");
    let store = open(&url);
    store.ping().await.unwrap();
    let own = client(&url).await;
    let fill = |tenant: &str, kind: &str, count: u32| {
        format!(
            "INSERT INTO hapax_claims SELECT {tenant}, '{kind}', 'op', 'k' || lpad(n::text, 6, '0'), \
                 0, 1, 1, 0, 4000000000000, 0, 4000000000000, 'token', NULL, '' \
             FROM generate_series(1, {count}) n;"
        )
    };
    let others = ["'aaa'", "'mine-too'", "'zzz'"].map(|tenant| fill(tenant, "command", 10_000));
    let mine = [
        fill("'mine'", "command", 35),
        fill("'mine'", "lock", 10_000),
        fill("'mine/' || lpad(n::text, 4, '0')", "command", 1200),
        fill("'mine/large'", "command", 20_000),
    ];
    own.batch_execute(&(others.concat() + &mine.concat() + "ANALYZE hapax_claims")).await.unwrap();

    // As in a pool, where statements are prepared and their plans soon fit any parameters.
    let prepare = "SET plan_cache_mode = force_generic_plan; \
                   PREPARE page (text, text, text, text, text, bigint, boolean) AS ";
    own.batch_execute(&format!("{prepare}{}", include_str!("../../src/sql/list.sql")))
        .await
        .unwrap();
    // The first call of a session reads the catalog.
    pages_of(&own, "EXECUTE page('mine', 'command', '', '', '', 10, false)").await;
    let after = [("", "", ""), ("mine", "op", "k000010"), ("mine", "op", "k000035")];
    for (tenant, scope, name) in after.into_iter().chain([("mine/large", "op", "k010000")]) {
        let page =
            format!("EXECUTE page('mine', 'command', '{tenant}', '{scope}', '{name}', 10, false)");
        let pages = pages_of(&own, &page).await;
        assert!(pages < 400, "{pages} pages after {tenant} {name}");
    }

    let (tenant, kind) = (Tenant::new("mine").unwrap(), KeyKind::Command);
    for max_claims in [1000, 50_000] {
        let mut query = ClaimQuery {
            tenant: tenant.clone(),
            kind,
            status: None,
            scope: None,
            after: None,
            max_claims,
        };
        let mut keys = Vec::new();
        loop {
            let page = store.list(&query).await.unwrap();
            keys.extend(page.claims.into_iter().map(|claim| claim.key));
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
        assert_eq!(keys.len(), 35 + 1200 + 20_000);
        assert!(keys.is_sorted_by_key(|key| (key.tenant().as_str(), key.name().to_owned())));
    }
    // A cursor of another tenant shows nothing of that tenant.
    for after in ["zzz:command:op:k000001", "mine-too:command:op:k000001"] {
        let after = Some(after.to_owned());
        let query = ClaimQuery {
            tenant: tenant.clone(),
            kind,
            status: None,
            scope: None,
            after,
            max_claims: 50,
        };
        let page = store.list(&query).await.unwrap();
        assert!(page.claims.iter().all(|claim| claim.key.tenant().as_str().starts_with("mine/")));
    }
}

/// A list of one status once read all claims of the tenant, and so did the count of open ones.
#[tokio::test]
async fn fault_29_open_claims_are_found_among_many_settled() {
    let url = SERVER.database("list_open");
    let store = open(&url);
    store.ping().await.unwrap();
    let own = client(&url).await;
    // One in ten thousand is pending, and its lease has run out.
    own.batch_execute(
        "INSERT INTO hapax_claims SELECT tenant, 'command', 'op', 'k' || lpad(n::text, 6, '0'), \
             CASE n % 10000 WHEN 0 THEN 0 ELSE 1 END, 1, 1, 0, 0, 0, 4000000000000, 'token', NULL, '' \
         FROM generate_series(1, 50000) n, unnest(ARRAY['mine', 'mine/a', 'other']) tenant; \
         ANALYZE hapax_claims",
    )
    .await
    .unwrap();
    let prepare = "SET plan_cache_mode = force_generic_plan; \
                   PREPARE page (text, text, text, text, text, bigint, boolean) AS ";
    let list = include_str!("../../src/sql/list.sql");
    own.batch_execute(&format!("{prepare}{list}")).await.unwrap();
    let page = "EXECUTE page('mine', 'command', '', '', '', 50, true)";
    // The first call of a session reads the catalog.
    pages_of(&own, page).await;
    let pages = pages_of(&own, page).await;
    assert!(pages < 200, "{pages} pages for one page of a list");
    let count = "SELECT count(*) FROM hapax_claims WHERE phase <> 1 AND kind = 'command'";
    let pages = pages_of(&own, count).await;
    assert!(pages < 200, "{pages} pages to count open claims");

    let (tenant, kind) = (Tenant::new("mine").unwrap(), KeyKind::Command);
    let status = Some(ClaimStatus::Unknown);
    let mut query = ClaimQuery { tenant, kind, status, scope: None, after: None, max_claims: 3 };
    let (mut found, mut read) = (Vec::new(), 0);
    loop {
        let page = store.list(&query).await.unwrap();
        found.extend(page.claims.into_iter().map(|claim| claim.key));
        query.after = page.next;
        read += 1;
        if query.after.is_none() {
            break;
        }
    }
    assert_eq!((found.len(), read), (10, 4), "three to a page");
    assert!(found.is_sorted_by_key(|key| (key.tenant().as_str(), key.name().to_owned())));
    let open = OpenClaims { unknown: 15, ..OpenClaims::default() };
    assert_eq!(store.count_open(None, kind).await.unwrap(), Some(open));
}
