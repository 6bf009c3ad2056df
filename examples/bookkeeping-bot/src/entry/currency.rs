/// The active ISO 4217 codes, including funds and metals, in alphabetical order.
const CODES: &str = "\
AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BOV BRL BSD BTN BWP BYN BZD \
CAD CDF CHE CHF CHW CLF CLP CNY COP COU CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP \
GEL GHS GIP GMD GNF GTQ GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW \
KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN \
NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD \
SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD USN UYI UYU UYW \
UZS VED VES VND VUV WST XAD XAF XAG XAU XBA XBB XBC XBD XCD XCG XDR XOF XPD XPF XPT XSU XTS XUA XXX \
YER ZAR ZMW ZWG";

/// Whether `code` is an active ISO 4217 code.
///
/// ```
/// use bookkeeping_bot::entry::is_currency;
/// assert!(is_currency("TWD"));
/// assert!(!is_currency("twd") && !is_currency("ZZZ") && !is_currency("TWD JPY"));
/// ```
pub fn is_currency(code: &str) -> bool {
    CODES.split(' ').any(|known| known == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_in_order_without_doubles_and_made_of_codes() {
        let codes: Vec<_> = CODES.split(' ').collect();
        assert!(codes.is_sorted_by(|a, b| a < b), "{codes:?}");
        let is_code = |code: &&str| code.len() == 3 && code.bytes().all(|b| b.is_ascii_uppercase());
        assert!(codes.iter().all(is_code));
        assert_eq!(codes.len(), 179);
    }

    #[test]
    fn withdrawn_codes_are_none() {
        for code in ["DEM", "HRK", "ANG", "CUC", "SLL", "ZWL", "", "T"] {
            assert!(!is_currency(code), "{code}");
        }
    }
}
