//! The clients of the demo: they retry, tap twice, reuse keys, disappear and come back.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures_util::future::{join, join_all};
use hapax_http_client::{FullResponse, HttpClient, post};
use hapax_line::ChannelSecrets;
use hapax_line::simulator::{WebhookSender, events};
use http_body_util::BodyExt;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Method, Uri};
use serde_json::{Value, json};
use uuid::Uuid;

use super::LINE_SECRET;
use super::dice::Dice;

/// The longest that one request may take.
const TIMEOUT: Duration = Duration::from_secs(15);
/// How many customers shop at once.
const CUSTOMERS: usize = 4;
/// The bot, as LINE names it.
const DESTINATION: &str = "Udemo0000000000000000000000000000";

#[derive(Clone)]
pub(super) struct DemoTraffic {
    server: String,
    proxy: String,
    line: WebhookSender,
    client: HttpClient,
    dice: Arc<Dice>,
}

impl DemoTraffic {
    pub(super) fn new(server: &str, proxy: &str, line: &str) -> anyhow::Result<Self> {
        let secrets = ChannelSecrets::new(LINE_SECRET).context("the demo's channel secret")?;
        let webhook = format!("{line}/line/webhook");
        Ok(Self {
            server: server.to_owned(),
            proxy: proxy.to_owned(),
            line: WebhookSender::new(&webhook, &secrets, DESTINATION)?,
            client: HttpClient::new(),
            dice: Arc::new(Dice::new()),
        })
    }

    /// Sends requests of every kind until it is dropped. A request that fails is part of the picture.
    pub(super) async fn run(&self) {
        let shopping = join_all((0..CUSTOMERS).map(|customer| self.shop_on(customer)));
        let api = join(self.pay_on(), self.report_on());
        let _ = tokio::join!(shopping, api, self.scan_on(), self.chat_on());
    }

    /// Orders through the proxy, each with a key; many are sent twice or retried.
    async fn shop_on(&self, customer: usize) {
        loop {
            let path = if self.dice.percent(15) { "refunds" } else { "orders" };
            let (key, cups) = (Uuid::new_v4().to_string(), self.dice.pick(1..9));
            let order = |cups| self.order(path, customer, &key, cups);
            if self.dice.percent(40) {
                join_all((0..self.dice.pick(2..5)).map(|_| order(cups))).await;
            } else {
                order(cups).await;
            }
            self.dice.pause(50..400).await;
            if self.dice.percent(30) {
                order(cups).await;
            }
            if self.dice.percent(5) {
                order(cups + 10).await;
            }
            self.dice.pause(100..900).await;
        }
    }

    async fn order(&self, path: &str, customer: usize, key: &str, cups: u64) {
        let headers = [
            ("idempotency-key", format!("\"{key}\"")),
            (AUTHORIZATION.as_str(), format!("Bearer customer-{customer}")),
        ];
        let url = format!("{}/{path}", self.proxy);
        self.send(Method::POST, &url, &json!({ "cups": cups }), &headers).await;
    }

    /// Pays with commands of the API. Some workers never come back, so that an outcome stays unknown.
    async fn pay_on(&self) {
        loop {
            let key = Uuid::new_v4();
            let url = format!("{}/v1/commands/pay/{key}", self.server);
            let begin = |fingerprint: &str| json!({ "fingerprint": fingerprint, "lease_ms": 2000 });
            let granted = self.send(Method::POST, &url, &begin("cups"), &[]).await;
            let token = granted.and_then(|granted| {
                granted.json::<Value>().ok()?.get("token")?.as_str().map(str::to_owned)
            });
            if self.dice.percent(50) {
                self.send(Method::POST, &url, &begin("cups"), &[]).await;
            }
            self.dice.pause(50..600).await;
            if let Some(token) = token.filter(|_| !self.dice.percent(3)) {
                let response = json!({ "token": token, "status": 201, "body": "paid" });
                self.send(Method::PUT, &url, &response, &[]).await;
            }
            for fingerprint in ["cups", "cups", "mugs"] {
                if self.dice.percent(35) {
                    self.send(Method::POST, &url, &begin(fingerprint), &[]).await;
                }
            }
            self.dice.pause(300..1500).await;
        }
    }

    /// Holds a lock for a while, as a nightly report does, beside another that wants it.
    async fn report_on(&self) {
        loop {
            let number = self.dice.pick(1..5);
            let url = format!("{}/v1/locks/report-{number}", self.server);
            let lock = json!({ "ttl_ms": 20_000, "label": format!("report-worker-{number}") });
            self.send(Method::POST, &url, &lock, &[]).await;
            self.dice.pause(2000..5000).await;
        }
    }

    /// Publishes the events of jobs, some twice, while a browser follows, leaves and comes back.
    async fn scan_on(&self) {
        loop {
            let job = format!("scan-{}", self.dice.pick(1000..10_000));
            join(self.publish(&job), self.follow(&job)).await;
            self.dice.pause(500..2000).await;
        }
    }

    async fn publish(&self, job: &str) {
        let stages = ["upload", "vision", "rules", "answer", "done"];
        for (number, stage) in stages.iter().enumerate() {
            let event = json!({
                "domain": "scan", "job_id": job, "stage": stage, "seq": (number + 1) * 10,
                "data": { "percent": (number + 1) * 20 }, "final": *stage == "done",
            });
            let url = format!("{}/v1/events", self.server);
            for _ in 0..self.dice.pick(1..3) {
                self.send(Method::POST, &url, &event, &[]).await;
            }
            self.dice.pause(300..900).await;
        }
    }

    /// Reads the stream of a job twice: a part of it, then the rest.
    async fn follow(&self, job: &str) {
        let url = format!("{}/v1/jobs/scan/{job}/events", self.server);
        let Ok(uri) = url.parse::<Uri>() else { return };
        for seconds in [1, 10] {
            let reading = async {
                let Ok(response) = self.client.request(hapax_http_client::get(uri.clone())).await
                else {
                    return;
                };
                let mut body = response.into_body();
                while let Some(Ok(_)) = body.frame().await {}
            };
            let _ = tokio::time::timeout(Duration::from_secs(seconds), reading).await;
        }
    }

    /// Chats with the bot: some users tap twice, and LINE delivers some events again.
    async fn chat_on(&self) {
        loop {
            let user = format!("Udemo{:028}", self.dice.pick(0..6));
            let event = events::text(&user, "台北");
            let mut webhooks = vec![event.clone()];
            if self.dice.percent(40) {
                webhooks.push(events::text(&user, "台北"));
            }
            if self.dice.percent(30) {
                webhooks.push(events::redelivered(&event));
            }
            join_all(webhooks.iter().map(|event| self.line.send(std::slice::from_ref(event))))
                .await;
            self.dice.pause(500..2500).await;
        }
    }

    async fn send(
        &self,
        method: Method,
        url: &str,
        body: &Value,
        headers: &[(&'static str, String)],
    ) -> Option<FullResponse> {
        let mut request = post(url.parse().ok()?, body);
        *request.method_mut() = method;
        for (name, value) in headers {
            request.headers_mut().insert(*name, HeaderValue::from_str(value).ok()?);
        }
        self.client.call(request, TIMEOUT).await.ok()
    }
}
