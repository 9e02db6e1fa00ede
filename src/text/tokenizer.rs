//! Text to token ids and back, for byte-level BPE checkpoints, over the `tokenizers` crate.
//!
//! The crate does the normalisation, the split and the merges. Control tokens are found here, because who wrote the
//! text decides whether `<|im_end|>` is a token or nine characters: the template's words may hold control tokens, a
//! user's never do. This file never guesses a control token's meaning from its spelling.

use serde::Deserialize;

use super::controls::ControlStrings;
use super::prompt::{Piece, Prompt};
use crate::base::error::{Error, Result};

/// The tokenizer of one checkpoint.
pub struct Tokenizer {
    /// The vocabulary and merges, with every added token taken out: encoding can yield none of them.
    plain: tokenizers::Tokenizer,
    controls: ControlStrings,
    bytes: TokenBytes,
    /// Hidden when decoding with `skip_special`, by id.
    special: Vec<bool>,
}

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.json`.
    pub fn from_bytes(json: &[u8]) -> Result<Tokenizer> {
        Tokenizer::read(json).map_err(|error| error.within("tokenizer.json"))
    }

    fn read(json: &[u8]) -> Result<Tokenizer> {
        let file: AddedTokens =
            serde_json::from_slice(json).map_err(|error| Error::input(error.to_string(), REMEDY))?;
        let mut plain =
            tokenizers::Tokenizer::from_bytes(json).map_err(|error| Error::input(error.to_string(), REMEDY))?;
        for token in &file.added_tokens {
            check_added_token(token, &plain)?;
        }
        plain.with_added_vocabulary(tokenizers::AddedVocabulary::new());
        plain.with_padding(None);
        // A file may ask for truncation, which would drop the end of a prompt without a word.
        plain.with_truncation(None).map_err(|error| Error::input(error.to_string(), REMEDY))?;

        let bytes = TokenBytes::new(&plain, &file.added_tokens)?;
        let mut special = vec![false; bytes.count()];
        for token in &file.added_tokens {
            special[token.id as usize] = token.special;
        }
        let controls =
            ControlStrings::new(file.added_tokens.into_iter().map(|token| (token.content, token.id)).collect());
        Ok(Tokenizer { plain, controls, bytes, special })
    }

    /// Text that a person or a tool wrote: no added token is ever recognised in it.
    pub fn encode_text(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        self.encode_text_into(text, &mut ids);
        ids
    }

    /// Text whose author may write control tokens (a raw completion prompt): every added token is recognised.
    pub fn encode_template(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut start = 0;
        for found in self.controls.find(text) {
            self.encode_text_into(&text[start..found.start], &mut ids);
            ids.push(found.id);
            start = found.end;
        }
        self.encode_text_into(&text[start..], &mut ids);
        ids
    }

    /// A rendered chat prompt: the template's control tokens are tokens, the client's spellings of them are text.
    pub fn encode_prompt(&self, prompt: &Prompt) -> Vec<u32> {
        let mut ids = Vec::new();
        for piece in prompt.pieces() {
            match piece {
                Piece::Control { id, .. } => ids.push(*id),
                Piece::Text(text) => self.encode_text_into(text, &mut ids),
            }
        }
        ids
    }

    fn encode_text_into(&self, text: &str, ids: &mut Vec<u32>) {
        if text.is_empty() {
            return;
        }
        let encoding = self.plain.encode_fast(text, false);
        // Byte-level BPE has a token for every byte (checked when loading), so no text can be refused.
        ids.extend_from_slice(encoding.expect("byte-level BPE encodes any text").get_ids());
    }

    /// The text of `ids`, invalid UTF-8 shown as U+FFFD; `skip_special` leaves out the tokens marked special.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            if !(skip_special && self.is_special(id)) {
                bytes.extend_from_slice(self.token_bytes(id));
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes that a token stands for; not always whole characters. Empty for an id that no token has.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id)
    }

    /// The id of an added token, or of a vocabulary entry as `tokenizer.json` spells it.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.controls.id_of(token).or_else(|| self.plain.token_to_id(token))
    }

    /// One more than the last id that means something; columns of the logits beyond it are never sampled.
    pub fn vocab_live(&self) -> usize {
        self.bytes.count()
    }

    /// Whether the checkpoint marks the token as special, that is, hidden from a reader.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    /// Whether the token is an added one, special or not: `<think>` is added and not special.
    pub fn is_added(&self, id: u32) -> bool {
        self.controls.text_of(id).is_some()
    }

    /// The added tokens, for rendering and for encoding prompts.
    pub fn controls(&self) -> &ControlStrings {
        &self.controls
    }
}

const REMEDY: &str = "use the tokenizer.json that belongs to the checkpoint";

/// The one part of the file that the crate does not give back as written.
#[derive(Deserialize)]
struct AddedTokens {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

/// Refuses what this file would otherwise get wrong without a word.
fn check_added_token(token: &AddedToken, plain: &tokenizers::Tokenizer) -> Result<()> {
    let refused =
        |why: String| Err(Error::input(format!("added token {:?} (id {}) {why}", token.content, token.id), REMEDY));
    if token.content.is_empty() {
        return refused("is empty".to_owned());
    }
    if token.single_word || token.lstrip || token.rstrip {
        return refused("has single_word, lstrip or rstrip, which are not supported".to_owned());
    }
    // A normalised token is matched in normalised text; for ASCII the two are the same.
    if token.normalized && !token.content.is_ascii() {
        return refused("is matched after normalisation, which is not supported".to_owned());
    }
    match plain.token_to_id(&token.content) {
        Some(id) if id == token.id => Ok(()),
        Some(id) => refused(format!("would be loaded as id {id}")),
        None => refused("was not loaded".to_owned()),
    }
}

/// The bytes of every token, end to end, so that looking one up allocates nothing.
struct TokenBytes {
    all: Vec<u8>,
    /// `ends[id]` is where the bytes of `id` end; they begin where those of `id - 1` end.
    ends: Vec<u32>,
}

impl TokenBytes {
    fn new(plain: &tokenizers::Tokenizer, added: &[AddedToken]) -> Result<TokenBytes> {
        let vocabulary = plain.get_vocab(false);
        let last = vocabulary.values().copied().chain(added.iter().map(|token| token.id)).max();
        let count = last.map_or(0, |last| last as usize + 1);
        if count > TOKENS_MAX {
            return Err(Error::input(format!("the last token id is {}, the limit is {TOKENS_MAX}", count - 1), REMEDY));
        }
        let mut by_id: Vec<Vec<u8>> = vec![Vec::new(); count];
        let mut bytes_seen = [false; 256];
        let alphabet = byte_of_char();
        for (spelling, &id) in &vocabulary {
            let bytes: Option<Vec<u8>> =
                spelling.chars().map(|c| alphabet.get(c as usize).copied().flatten()).collect();
            let is_added = added.iter().any(|token| token.id == id);
            match bytes {
                Some(bytes) => {
                    if let [byte] = bytes[..] {
                        bytes_seen[byte as usize] = true;
                    }
                    by_id[id as usize] = bytes;
                }
                None if is_added => {}
                None => return Err(Error::input(format!("token {spelling:?} (id {id}) is not byte-level"), REMEDY)),
            }
        }
        if let Some(byte) = bytes_seen.iter().position(|seen| !seen) {
            return Err(Error::input(format!("the vocabulary has no token for byte {byte}"), REMEDY));
        }
        for token in added {
            by_id[token.id as usize] = token.content.clone().into_bytes();
        }
        let mut all = Vec::with_capacity(by_id.iter().map(Vec::len).sum());
        let mut ends = Vec::with_capacity(count);
        for bytes in by_id {
            all.extend_from_slice(&bytes);
            ends.push(u32::try_from(all.len()).expect("a vocabulary's text is under 4 GiB"));
        }
        Ok(TokenBytes { all, ends })
    }

    fn count(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.all[start as usize..end as usize]
    }
}

/// Far above any vocabulary; a bound on what a damaged file can make us allocate.
const TOKENS_MAX: usize = 1 << 22;

/// The byte-level alphabet undone: printable bytes stand for themselves, the others follow from U+0100 in order.
fn byte_of_char() -> Vec<Option<u8>> {
    let mut table = vec![None; 256 + 68];
    let mut extra = 256;
    for byte in 0..=255u8 {
        if matches!(byte, 33..=126 | 161..=172 | 174..=255) {
            table[byte as usize] = Some(byte);
        } else {
            table[extra] = Some(byte);
            extra += 1;
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_is_a_bijection() {
        let table = byte_of_char();
        let mut bytes: Vec<u8> = table.iter().flatten().copied().collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!(table['Ġ' as usize], Some(b' '));
        assert_eq!(table['Ċ' as usize], Some(b'\n'));
        assert_eq!(table['é' as usize], Some(0xe9));
    }

    #[test]
    fn a_broken_file_is_an_input_error_that_names_the_file() {
        let error = Tokenizer::from_bytes(b"{").err().expect("half a brace is no tokenizer");
        assert!(error.what().starts_with("tokenizer.json: "), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
}
