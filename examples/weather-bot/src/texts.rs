//! All texts that the bot sends or recognizes.

use std::fmt::Write as _;

use crate::place::{Place, Spot};
use crate::users::Recent;
use crate::weather::{Now, Today, Weather};

pub(crate) const WELCOME: &str = "👋 您好，我是天氣小幫手！\n\
    輸入地名（例如：台北）或傳送位置，就能查詢目前天氣與今日預報。\n\
    輸入「設定住家 台北」、「設定公司 新竹」，之後按一下選單就能查詢。";

pub(crate) const HELP: &str = "ℹ️ 使用說明\n\
    ・輸入地名查詢天氣，例如：台北\n\
    ・傳送位置，查詢該處天氣\n\
    ・設定住家：設定住家 台北\n\
    ・設定公司：設定公司 新竹\n\
    ・選單：住家、公司、目前位置、最近查詢、設定";

pub(crate) const ASK_LOCATION: &str = "📍 請按下方按鈕，傳送您目前的位置。";
pub(crate) const WEATHER_AWAY: &str = "😥 天氣服務暫時無法使用，請稍後再試。";
pub(crate) const USERS_AWAY: &str = "😥 暫時無法讀取您的資料，請稍後再試。";
pub(crate) const NOT_SAVED: &str = "😥 設定暫時無法儲存，請稍後再試。";
pub(crate) const UNKNOWN_PLACE: &str =
    "🔍 找不到這個地點，請換個說法試試，例如：台北、新竹、東京。";
pub(crate) const UNKNOWN_BUTTON: &str = "🤔 這個按鈕目前沒有作用，請輸入「說明」查看使用方式。";
pub(crate) const NOBODY: &str = "🙏 這裡無法辨識您的帳號，請在與我的一對一聊天室中使用這項功能。";
pub(crate) const NO_RECENT: &str = "🗒 還沒有查詢紀錄，輸入地名就能開始查詢，例如：台北";
pub(crate) const FORGOTTEN: &str = "🗒 這個地點已不在最近查詢中，請重新輸入地名。";
pub(crate) const RECENT: &str = "🗒 最近查詢：";

/// The name of a location message without title and address.
pub(crate) const HERE: &str = "您的位置";

/// Labels of buttons.
pub(crate) mod labels {
    pub(crate) const HOME: &str = "🏠 住家";
    pub(crate) const OFFICE: &str = "🏢 公司";
    pub(crate) const LOCATION: &str = "📍 傳送位置";
    pub(crate) const RECENT: &str = "🗒 最近查詢";
    pub(crate) const HELP: &str = "ℹ️ 說明";
    pub(crate) const SET_HOME: &str = "設為住家";
    pub(crate) const SET_OFFICE: &str = "設為公司";
}

/// Commands that users type.
pub(crate) mod typed {
    pub(crate) const HELP: &[&str] = &["說明", "幫助", "help"];
    pub(crate) const SET_HOME: &str = "設定住家";
    pub(crate) const SET_OFFICE: &str = "設定公司";
    /// Words that address the bot in a group, where it answers nothing else but mentions.
    pub(crate) const BOT: &[&str] = &["天氣", "/weather"];
}

const fn name(spot: Spot) -> &'static str {
    match spot {
        Spot::Home => "住家",
        Spot::Office => "公司",
    }
}

pub(crate) fn weather(place: &Place, weather: &Weather) -> String {
    let mut text = format!("📍 {}\n{}", place.name, line_of_now(&weather.now));
    if let Some(today) = &weather.today {
        let _ = write!(text, "\n{}", line_of_today(today));
    }
    text
}

fn line_of_now(now: &Now) -> String {
    let mut line = format!("目前：{}，{}°C", sky(now.code), whole(now.temperature));
    let mut add = |label: &str, value: Option<f64>, unit: &str| {
        if let Some(value) = value {
            let _ = write!(line, "，{label} {}{unit}", whole(value));
        }
    };
    add("體感", now.feels_like, "°C");
    add("濕度", now.humidity, "%");
    add("風速", now.wind, " km/h");
    line
}

fn line_of_today(today: &Today) -> String {
    let (lowest, highest) = (whole(today.lowest), whole(today.highest));
    let mut line = format!("今日：{}，{lowest}～{highest}°C", sky(today.code));
    if let Some(chance) = today.rain_chance {
        let _ = write!(line, "，降雨機率 {}%", whole(chance));
    }
    line
}

/// Rounds to an integer; adding 0.0 turns `-0` into `0`.
fn whole(value: f64) -> f64 {
    value.round() + 0.0
}

/// WMO code table 4677, limited to the codes that weather services use.
fn sky(code: u8) -> &'static str {
    match code {
        0 => "☀️ 晴朗",
        1 => "🌤 大致晴朗",
        2 => "⛅ 局部多雲",
        3 => "☁️ 陰天",
        45 => "🌫 有霧",
        48 => "🌫 霧淞",
        51 => "🌦 毛毛細雨",
        53 => "🌦 毛毛雨",
        55 => "🌧 濃密毛毛雨",
        56 => "🌧 凍毛毛細雨",
        57 => "🌧 凍毛毛雨",
        61 => "🌧 小雨",
        63 => "🌧 中雨",
        65 => "🌧 大雨",
        66 => "🌧 小凍雨",
        67 => "🌧 大凍雨",
        71 => "🌨 小雪",
        73 => "🌨 中雪",
        75 => "❄️ 大雪",
        77 => "🌨 雪粒",
        80 => "🌦 小陣雨",
        81 => "🌧 陣雨",
        82 => "⛈ 強陣雨",
        85 => "🌨 小陣雪",
        86 => "❄️ 大陣雪",
        95 => "⛈ 雷雨",
        96 => "⛈ 雷雨伴隨小冰雹",
        99 => "⛈ 雷雨伴隨大冰雹",
        _ => "🌡 天氣狀況不明",
    }
}

pub(crate) fn was_set(spot: Spot, place: &Place) -> String {
    format!("✅ 已將{}設為：{}", name(spot), place.name)
}

pub(crate) fn not_set(spot: Spot) -> String {
    let name = name(spot);
    format!("🙋 還沒有設定{name}。請輸入「設定{name} 地名」，例如：設定{name} 台北")
}

pub(crate) fn settings(home: Option<&Place>, office: Option<&Place>) -> String {
    let line = |place: Option<&Place>| place.map_or("尚未設定".to_owned(), |p| p.name.clone());
    format!(
        "⚙️ 目前設定\n住家：{}\n公司：{}\n\n變更請輸入「設定住家 地名」或「設定公司 地名」。",
        line(home),
        line(office),
    )
}

pub(crate) fn recent(queries: &[Recent]) -> String {
    let mut text = RECENT.to_owned();
    for (nth, query) in queries.iter().enumerate() {
        let _ = write!(text, "\n{}. {}", nth + 1, query.place.name);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weather_is_told_in_three_lines() {
        let place = Place::new("台北（臺灣）", 25.0, 121.5).unwrap();
        let now = Now {
            code: 2,
            temperature: 27.4,
            feels_like: Some(30.1),
            humidity: Some(78.0),
            wind: Some(11.6),
        };
        let today = Today { code: 80, lowest: -0.4, highest: 31.5, rain_chance: Some(60.0) };
        assert_eq!(
            weather(&place, &Weather { now: now.clone(), today: Some(today.clone()) }),
            "📍 台北（臺灣）\n\
             目前：⛅ 局部多雲，27°C，體感 30°C，濕度 78%，風速 12 km/h\n\
             今日：🌦 小陣雨，0～32°C，降雨機率 60%"
        );
        let now = Now { feels_like: None, humidity: None, wind: None, ..now };
        let today = Today { rain_chance: None, ..today };
        assert_eq!(
            weather(&place, &Weather { now: now.clone(), today: Some(today) }),
            "📍 台北（臺灣）\n目前：⛅ 局部多雲，27°C\n今日：🌦 小陣雨，0～32°C"
        );
        let text = weather(&place, &Weather { now, today: None });
        assert_eq!(text, "📍 台北（臺灣）\n目前：⛅ 局部多雲，27°C");
    }

    #[test]
    fn weather_codes_have_words_and_others_are_unknown() {
        let codes = [
            0, 1, 2, 3, 45, 48, 51, 53, 55, 56, 57, 61, 63, 65, 66, 67, 71, 73, 75, 77, 80, 81, 82,
            85, 86, 95, 96, 99,
        ];
        let words: std::collections::BTreeSet<_> = codes.iter().map(|code| sky(*code)).collect();
        assert_eq!(words.len(), codes.len());
        for unknown in (0..=u8::MAX).filter(|code| !codes.contains(code)) {
            assert_eq!(sky(unknown), "🌡 天氣狀況不明");
        }
    }
}
