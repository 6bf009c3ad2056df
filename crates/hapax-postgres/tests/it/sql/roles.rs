//! Rights: `hapax_app` may call the functions and nothing else.

use hapax_postgres::{PostgresConfig, migrate, migration_sql};

use super::{begin, error_code, is_true};
use crate::{SERVER, client};

/// Signatures of all functions that run with their owner's rights.
const FUNCTIONS: &str = "SELECT p.oid::regprocedure::text, p.proconfig::text, \
     has_function_privilege('hapax_app', p.oid, 'EXECUTE'), \
     (SELECT count(*) FROM aclexplode(p.proacl) a WHERE a.grantee = 0), \
     obj_description(p.oid), pg_get_userbyid(p.proowner)::text \
     FROM pg_proc p WHERE p.prosecdef AND p.proname LIKE 'hapax%' ORDER BY 1";

#[tokio::test]
async fn sql_role_may_call_the_functions_and_nothing_else() {
    let url = SERVER.database("sql_role");
    migrate(&mut client(&url).await).await.unwrap();
    let roles = "CREATE ROLE sql_shop LOGIN IN ROLE hapax_app; CREATE ROLE sql_stranger LOGIN";
    SERVER.psql_in("sql_role", roles);
    let shop = client(&url.replace("postgres@", "sql_shop@")).await;
    let granted = begin(&shop, "operation => 'o', key => 'k'").await;
    let token = granted.token();
    assert!(is_true(&shop, &format!("hapax_complete('o', 'k', '{token}', status => 201)")).await);
    assert_eq!(begin(&shop, "'o', 'k'").await.state, "completed");
    let failed = begin(&shop, "'o', 'f'").await;
    assert!(is_true(&shop, &format!("hapax_fail('o', 'f', '{}')", failed.token())).await);
    assert!(is_true(&shop, "hapax_receive('c', 'm')").await);
    assert!(is_true(&shop, "hapax_enqueue('t', 'k', 'x') IS NOT NULL").await);
    assert!(is_true(&shop, "hapax_record_put('r', '1') > 0").await);
    assert!(is_true(&shop, "(SELECT value = '1' FROM hapax_record_get('r'))").await);
    let lock = shop.query_one("SELECT token FROM hapax_lock('l')", &[]).await.unwrap();
    assert!(is_true(&shop, &format!("hapax_unlock('l', '{}')", lock.get::<_, &str>(0))).await);

    let tables = SERVER.psql_in(
        "sql_role",
        "SELECT relname FROM pg_class WHERE relname LIKE 'hapax%' AND relkind IN ('r', 'S')",
    );
    assert!(tables.lines().count() > 10);
    for table in tables.lines() {
        assert_eq!(error_code(&shop, &format!("SELECT * FROM {table}")).await, "42501", "{table}");
    }
    for forbidden in [
        "INSERT INTO hapax_outbox (topic, payload) VALUES ('t', 'x')",
        "DELETE FROM hapax_claims",
        "UPDATE hapax_claims SET phase = 1",
        "TRUNCATE hapax_claims",
        "SELECT nextval('hapax_fence')",
        "SELECT hapax_claim_key('default', 'command', 'o', 'k', 1, '', NULL, 1, 1, true, false, false)",
        "SELECT hapax_step_key('default', 'command', 'o', 'k', 1, '', 3::smallint, 1, '', false)",
        "CREATE FUNCTION hapax_begin(text) RETURNS text LANGUAGE sql AS 'SELECT 1::text'",
        "SELECT hapax_grant_app('sql_stranger')",
    ] {
        let code = error_code(&shop, forbidden).await;
        assert_eq!(code, "42501", "{forbidden}");
    }
    // A stranger may not even call them.
    let stranger = client(&url.replace("postgres@", "sql_stranger@")).await;
    assert_eq!(error_code(&stranger, "SELECT hapax_begin('o', 'k')").await, "42501");
}

#[tokio::test]
async fn sql_functions_are_pinned_commented_and_not_public() {
    let url = SERVER.database("sql_pinned");
    let mut own = client(&url).await;
    own.batch_execute("CREATE SCHEMA \"Odd name\"; SET search_path = \"Odd name\"").await.unwrap();
    migrate(&mut own).await.unwrap();
    let rows = own.query(FUNCTIONS, &[]).await.unwrap();
    assert_eq!(rows.len(), 9);
    for row in &rows {
        let name: String = row.get(0);
        let config: String = row.get(1);
        assert!(
            config.contains("search_path=pg_catalog, ") && config.contains("Odd name"),
            "{config}"
        );
        assert!(config.contains(", pg_temp"), "{config}");
        assert!(row.get::<_, bool>(2), "{name}");
        assert_eq!(row.get::<_, i64>(3), 0, "PUBLIC may call {name}");
        assert!(row.get::<_, Option<String>>(4).is_some(), "{name} has no comment");
    }
    // Neither the caller's search_path nor a temporary table of his leads the functions astray.
    own.batch_execute("SET search_path = pg_catalog").await.unwrap();
    own.batch_execute("CREATE TEMP TABLE hapax_claims (LIKE \"Odd name\".hapax_claims)")
        .await
        .unwrap();
    own.batch_execute("SELECT \"Odd name\".hapax_begin('o', 'k')").await.unwrap();
    assert!(is_true(&own, "count(*) = 1 FROM \"Odd name\".hapax_claims").await);
}

/// A role that may not create roles migrates; an administrator makes the role later.
#[tokio::test]
async fn sql_role_can_be_made_by_an_administrator() {
    let server = hapax_testkit::Postgres::start();
    // Capitals, so that a name which is not quoted somewhere is noticed.
    server.psql("CREATE ROLE \"Owner\" LOGIN");
    let url = server.database("app");
    server.psql_in("app", "GRANT CREATE ON SCHEMA public TO \"Owner\"");
    let owner_url = url.replace("postgres@", "Owner@");
    migrate(&mut client(&owner_url).await).await.unwrap();
    assert_eq!(server.psql("SELECT count(*) FROM pg_roles WHERE rolname = 'hapax_app'"), "0");
    server.psql("CREATE ROLE hapax_app NOLOGIN; CREATE ROLE shop LOGIN IN ROLE hapax_app");
    let shop = client(&url.replace("postgres@", "shop@")).await;
    assert_eq!(error_code(&shop, "SELECT hapax_begin('o', 'k')").await, "42501");
    let owner = client(&owner_url).await;
    owner.batch_execute("SELECT hapax_grant_app()").await.unwrap();
    assert_eq!(begin(&shop, "'o', 'k'").await.state, "granted");
    // Any other role, too.
    server.psql("CREATE ROLE billing LOGIN");
    owner.batch_execute("SELECT hapax_grant_app('billing')").await.unwrap();
    let billing = client(&url.replace("postgres@", "billing@")).await;
    assert!(is_true(&billing, "hapax_receive('billing', 'm')").await);
    assert_eq!(error_code(&billing, "SELECT * FROM hapax_claims").await, "42501");

    // A superuser who migrates in the owner's place leaves functions that run with the owner's rights.
    let other = server.database("other");
    let tables = include_str!("../../../migrations/0001_claims_and_records.sql");
    server.psql_in("other", "GRANT CREATE ON SCHEMA public TO \"Owner\"");
    let owner = client(&other.replace("postgres@", "Owner@")).await;
    owner.batch_execute(tables).await.unwrap();
    owner.batch_execute("INSERT INTO hapax_meta VALUES ('schema', '1')").await.unwrap();
    let printed = migration_sql(&PostgresConfig::new(&other)).await.unwrap();
    server.psql_in("other", &printed);
    let rows = owner.query(FUNCTIONS, &[]).await.unwrap();
    assert!(rows.len() == 9 && rows.iter().all(|row| row.get::<_, String>(5) == "Owner"));
}
