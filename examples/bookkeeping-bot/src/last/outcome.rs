use hapax::StoreError;
use hapax::document::DocumentError;

use crate::entry::InvalidEntry;

/// The result of an edit or a deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The change is stored.
    Done,
    /// There is no record to edit.
    Missing,
    /// The record changed between reading and writing. Nothing was stored, and nothing is retried:
    /// the user has to look at the new entry first.
    Changed,
    /// The record existed when it was read, and was gone when it was to be written.
    Expired,
    /// The store refused the write (full, or read-only): nothing was stored.
    NotStored,
    /// The store is unreachable or did not answer: the change may or may not be stored.
    Uncertain,
    /// The record cannot be read now.
    Unreadable,
    /// The stored value is no entry.
    Corrupt,
    /// The change breaks a rule; nothing was stored.
    Refused(InvalidEntry),
}

impl Outcome {
    /// The library's message.
    pub fn message(&self) -> String {
        let text = match self {
            Self::Done => "修改成功",
            Self::Missing => "無可修改的交易記錄",
            Self::Changed => "交易已變更，請重新操作",
            Self::Expired => "交易已過期（1 小時限制）",
            Self::NotStored | Self::Uncertain => "儲存失敗，請稍後再試",
            Self::Unreadable => "系統暫時無法讀取交易記錄，請稍後再試",
            Self::Corrupt => "資料格式錯誤，請重新記帳",
            Self::Refused(error) => return error.to_string(),
        };
        text.into()
    }

    /// The text for the user.
    pub fn text(&self) -> String {
        match self {
            Self::Missing => "目前沒有可修改的交易記錄（交易記錄會在 1 小時後自動清除）".into(),
            Self::Uncertain => "系統暫時無法儲存變更，請稍後再試".into(),
            Self::Refused(error) => format!("無法修改：{error}"),
            _ => self.message(),
        }
    }

    /// The outcome of a failed read.
    pub(crate) fn of_reading(error: &DocumentError) -> Self {
        if matches!(error, DocumentError::Corrupt(_)) { Self::Corrupt } else { Self::Unreadable }
    }

    /// The outcome of a failed write, which may still have been stored. The caller refines a
    /// conflict.
    pub(super) fn of_writing(error: &DocumentError) -> Self {
        match error {
            DocumentError::Conflict => Self::Changed,
            DocumentError::Store(StoreError::Unavailable { .. } | StoreError::Timeout { .. }) => {
                Self::Uncertain
            }
            _ => Self::NotStored,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_texts_are_those_of_the_original_bot_letter_for_letter() {
        let missing = "目前沒有可修改的交易記錄（交易記錄會在 1 小時後自動清除）";
        let uncertain = "系統暫時無法儲存變更，請稍後再試";
        let unreadable = "系統暫時無法讀取交易記錄，請稍後再試";
        for (outcome, message, text) in [
            (Outcome::Done, "修改成功", "修改成功"),
            (Outcome::Missing, "無可修改的交易記錄", missing),
            (Outcome::Changed, "交易已變更，請重新操作", "交易已變更，請重新操作"),
            (Outcome::Expired, "交易已過期（1 小時限制）", "交易已過期（1 小時限制）"),
            (Outcome::NotStored, "儲存失敗，請稍後再試", "儲存失敗，請稍後再試"),
            (Outcome::Uncertain, "儲存失敗，請稍後再試", uncertain),
            (Outcome::Unreadable, unreadable, unreadable),
            (Outcome::Corrupt, "資料格式錯誤，請重新記帳", "資料格式錯誤，請重新記帳"),
        ] {
            assert_eq!((&*outcome.message(), &*outcome.text()), (message, text));
        }
    }

    #[test]
    fn a_store_that_refuses_is_told_from_one_that_does_not_answer() {
        let writing = |error| Outcome::of_writing(&DocumentError::Store(error));
        let reason = String::new;
        assert_eq!(writing(StoreError::Full { reason: reason() }), Outcome::NotStored);
        assert_eq!(writing(StoreError::ReadOnly { reason: reason() }), Outcome::NotStored);
        assert_eq!(writing(StoreError::Timeout { timeout: Duration::ZERO }), Outcome::Uncertain);
        let away = StoreError::Unavailable { reason: reason(), source: None };
        assert_eq!(writing(away), Outcome::Uncertain);
        let too_large = DocumentError::TooLarge { limit: 1 };
        assert_eq!(Outcome::of_writing(&too_large), Outcome::NotStored);
    }
}
