//! Bytes → [`Message`].

use core::net::IpAddr;

use super::super::config::Limits;
use super::super::ids::{Instance, KvRequestId, RoundSeq};
use super::super::keys::KeyBatch;
use super::super::message::{
    AbortAck, AbortFetch, Connect, ConnectAck, Dialect, Disconnect, Extension, Fetch, Lookup, LookupResp,
    Message, TcpOffer, TransferDone,
};
use super::fields::{Elements, Fields, Value};
use super::reader::{Reader, Reading, Token};
use super::{CodecError, Decoded};

/// Longest text, in bytes, of a field that has no limit of its own.
const MAX_TEXT: usize = 1024;
/// What a peer wrote is told on in so many characters at most. Every known `type` is far shorter.
const MAX_SHOWN: usize = 64;
/// A reason is cut to so many characters.
const MAX_REASON: usize = 1024;
const MAX_ADDRESSES: usize = 16;
const MAX_FEATURES: usize = 64;
const MAX_TOKEN: usize = 64;
/// Fewest bytes in which a key can come: marker, length, one byte.
const LEAST_KEY_BYTES: usize = 3;

/// Every field that some message has.
const FIELDS: [&str; 18] = [
    "type",
    "kv_request_id",
    "keys",
    "block_hashes",
    "block_indexes",
    "round_seq",
    "p2pkv_load",
    "hits",
    "success",
    "reason",
    "peer_id",
    "agent_metadata",
    "base_addr",
    "num_blocks",
    "block_len",
    "config_fingerprint",
    "hash_seed",
    "p2pkv",
];

/// Reads one message. `dialect`: what the peer is known to speak; `None` before its `connect`, when either form of
/// `fetch` is taken and a missing `round_seq` is 0.
///
/// # Errors
/// The payload is no message of that dialect or passes a limit; the error names the field, what was expected and
/// what came. A known field that comes twice is one; an unknown one may.
pub fn decode(payload: &[u8], dialect: Option<Dialect>, limits: &Limits) -> Result<Decoded, CodecError> {
    let mut fields = Fields::new("");
    fill(&mut fields, payload, limits)
        .and_then(|()| Form { fields: &fields, dialect, limits }.build())
        .map_err(|detail| CodecError { message: kind(&fields), detail })
}

fn fill<'a>(fields: &mut Fields<'a>, payload: &'a [u8], limits: &Limits) -> Reading<()> {
    if payload.len() > limits.message_bytes {
        return Err(format!("expected at most {} bytes, got {}", limits.message_bytes, payload.len()));
    }
    let mut reader = Reader::new(payload);
    fields.fill(&mut reader, &FIELDS, limits.nesting.saturating_sub(1))?;
    match reader.left() {
        0 => Ok(()),
        left => Err(format!("expected the end of the message, got {left} more bytes")),
    }
}

/// The `type` for an error.
fn kind(fields: &Fields) -> String {
    let text = fields.required("type").and_then(|value| value.read(|token| token.text(0..=usize::MAX)));
    text.map_or_else(|_| "message".to_owned(), |text| text.chars().take(MAX_SHOWN).collect())
}

/// A message as its fields and what to hold them to.
struct Form<'f, 'a> {
    fields: &'f Fields<'a>,
    dialect: Option<Dialect>,
    limits: &'f Limits,
}

impl<'a> Form<'_, 'a> {
    fn build(&self) -> Reading<Decoded> {
        let kind = self.required("type", |token| token.text(0..=usize::MAX))?;
        Ok(Decoded::Message(match kind {
            "abort_ack" => Message::AbortAck(AbortAck {
                kv_request_id: self.kv_request_id()?,
                round_seq: self.round_seq()?,
            }),
            "abort_fetch" => Message::AbortFetch(AbortFetch {
                kv_request_id: self.kv_request_id()?,
                round_seq: self.round_seq()?,
            }),
            "connect" => Message::Connect(Box::new(self.connect()?)),
            "connect_ack" => Message::ConnectAck(ConnectAck { peer_id: self.text("peer_id")?.to_owned() }),
            "disconnect" => Message::Disconnect(Disconnect { reason: self.reason() }),
            "fetch" => Message::Fetch(self.fetch()?),
            "lookup" => Message::Lookup(Lookup {
                kv_request_id: self.kv_request_id()?,
                keys: self.keys(self.array("keys")?)?,
                round_seq: self.round_seq()?,
            }),
            "lookup_resp" => Message::LookupResp(self.lookup_resp()?),
            "transfer_done" => Message::TransferDone(TransferDone {
                kv_request_id: self.kv_request_id()?,
                success: self.required("success", Token::boolean)?,
                round_seq: self.round_seq()?,
            }),
            unknown => return Ok(Decoded::Unknown { kind: unknown.chars().take(MAX_SHOWN).collect() }),
        }))
    }

    fn fetch(&self) -> Reading<Fetch> {
        let keys = self.array(self.keys_name())?;
        let indexes = self.array("block_indexes")?;
        same_length("block_indexes", &keys, &indexes)?;
        let load_token = match self.dialect {
            Some(Dialect::Legacy) => None,
            Some(Dialect::Current) | None => self.fields.optional("p2pkv_load"),
        };
        Ok(Fetch {
            kv_request_id: self.kv_request_id()?,
            keys: self.keys(keys)?,
            block_indexes: indexes.unsigned()?,
            round_seq: self.round_seq()?,
            load_token: load_token.map(|value| value.read(Token::unsigned)).transpose()?,
        })
    }

    /// What `keys` of a `fetch` are called.
    fn keys_name(&self) -> &'static str {
        match self.dialect {
            Some(Dialect::Current) => "keys",
            Some(Dialect::Legacy) => "block_hashes",
            None if self.fields.optional("keys").is_some() => "keys",
            None if self.fields.optional("block_hashes").is_some() => "block_hashes",
            None => "keys",
        }
    }

    fn lookup_resp(&self) -> Reading<LookupResp> {
        let keys = self.array("keys")?;
        let hits = self.array("hits")?;
        same_length("hits", &keys, &hits)?;
        Ok(LookupResp {
            kv_request_id: self.kv_request_id()?,
            keys: self.keys(keys)?,
            hits: all(hits, Token::boolean)?,
        })
    }

    fn connect(&self) -> Reading<Connect> {
        let any_length = 0..=self.limits.message_bytes;
        Ok(Connect {
            peer_id: self.text("peer_id")?.to_owned(),
            agent_metadata: self.required("agent_metadata", |token| token.bin(any_length))?.to_vec(),
            base_addr: self.required("base_addr", Token::unsigned)?,
            num_blocks: self.required("num_blocks", |token| token.integer_in(1..=u64::MAX))?,
            block_len: self.required("block_len", |token| token.integer_in(1..=u64::MAX))?,
            config_fingerprint: self.text("config_fingerprint")?.to_owned(),
            hash_seed: optional_text(self.fields, "hash_seed")?,
            extension: self.fields.optional("p2pkv").map(|value| self.extension(value)).transpose()?,
        })
    }

    fn extension(&self, value: Value<'a>) -> Reading<Extension> {
        const NAMES: [&str; 7] =
            ["version", "instance", "dialed_as", "dialed_as_echo", "answers", "transports", "features"];
        let fields = value.map("p2pkv.", &NAMES, self.limits.nesting)?;
        let instance = fields.required("instance")?.read(|token| token.bin(16..=16))?;
        let (tcp, nixl) = match fields.optional("transports") {
            Some(transports) => self.transports(transports)?,
            None => (None, false),
        };
        Ok(Extension {
            version: narrow(
                fields.required("version")?.read(|token| token.integer_in(1..=u32::MAX.into()))?,
            )?,
            instance: Instance(narrow(instance)?),
            dialed_as: optional_text(&fields, "dialed_as")?,
            dialed_as_echo: optional_text(&fields, "dialed_as_echo")?,
            answers: fields.optional("answers").map(access_token).transpose()?,
            tcp,
            nixl,
            features: fields.optional("features").map_or(Ok(Vec::new()), features)?,
        })
    }

    fn transports(&self, value: Value<'a>) -> Reading<(Option<TcpOffer>, bool)> {
        let fields = value.map("p2pkv.transports.", &["tcp", "nixl"], self.limits.nesting)?;
        let tcp = fields.optional("tcp").map(|value| self.tcp(value)).transpose()?;
        let nixl = fields.optional("nixl").map_or(Ok(false), |value| value.read(Token::boolean))?;
        Ok((tcp, nixl))
    }

    fn tcp(&self, value: Value<'a>) -> Reading<TcpOffer> {
        const NAMES: [&str; 4] = ["addresses", "port", "token", "host_identity"];
        let fields = value.map("p2pkv.transports.tcp.", &NAMES, self.limits.nesting)?;
        Ok(TcpOffer {
            addresses: all(fields.required("addresses")?.array(MAX_ADDRESSES)?, address)?,
            port: narrow(fields.required("port")?.read(|token| token.integer_in(1..=u16::MAX.into()))?)?,
            token: access_token(fields.required("token")?)?,
            host_identity: fields.required("host_identity")?.read(short_text)?.to_owned(),
        })
    }

    /// Never an error: a `disconnect` means the same with any reason.
    fn reason(&self) -> Option<String> {
        let bytes = self.fields.optional("reason")?.read(|token| match token {
            Token::Text(bytes) => Ok(bytes),
            other => Err(other.to_string()),
        });
        // No character takes more than 4 bytes: what lies behind cannot be among the first `MAX_REASON`.
        let bytes = bytes.ok()?;
        let bytes = bytes.get(..4 * MAX_REASON).unwrap_or(bytes);
        Some(String::from_utf8_lossy(bytes).chars().take(MAX_REASON).collect())
    }

    fn kv_request_id(&self) -> Reading<KvRequestId> {
        self.required("kv_request_id", |token| token.text(1..=self.limits.id_len)).map(KvRequestId::new)
    }

    fn round_seq(&self) -> Reading<RoundSeq> {
        let round = match self.dialect {
            Some(Dialect::Current) => Some(self.fields.required("round_seq")?),
            Some(Dialect::Legacy) => None,
            None => self.fields.optional("round_seq"),
        };
        round.map_or(Ok(RoundSeq::FIRST), |value| value.read(Token::unsigned).map(RoundSeq))
    }

    fn text(&self, name: &'static str) -> Reading<&'a str> {
        self.required(name, short_text)
    }

    fn required<T>(&self, name: &'static str, take: impl FnOnce(Token<'a>) -> Reading<T>) -> Reading<T> {
        self.fields.required(name)?.read(take)
    }

    /// An array with an element for each key.
    fn array(&self, name: &'static str) -> Reading<Elements<'a>> {
        self.fields.required(name)?.array(self.limits.keys_per_message)
    }

    fn keys(&self, mut elements: Elements<'a>) -> Reading<KeyBatch> {
        let lengths = 1..=self.limits.key_len;
        if let Some(keys) = KeyBatch::from_elements(elements.left(), elements.len(), &lengths) {
            return Ok(keys);
        }
        let bytes = elements.left().len();
        let mut keys = KeyBatch::with_capacity(elements.len().min(bytes / LEAST_KEY_BYTES), bytes);
        for _ in 0..elements.len() {
            let taken = elements.next(|token| {
                let key = token.bin(lengths.clone())?;
                Ok(keys.push(key))
            })?;
            if !taken {
                return Err(format!("expected keys of at most {} bytes in all, got more", u32::MAX));
            }
        }
        Ok(keys)
    }
}

fn same_length(name: &str, keys: &Elements, others: &Elements) -> Reading<()> {
    if keys.len() == others.len() {
        return Ok(());
    }
    Err(format!("`{name}`: expected one for each of the {} keys, got {}", keys.len(), others.len()))
}

/// The number of elements is one that the array's limit and the bytes at hand allow.
fn all<'a, T>(mut elements: Elements<'a>, take: impl Fn(Token<'a>) -> Reading<T>) -> Reading<Vec<T>> {
    let mut values = Vec::with_capacity(elements.len());
    for _ in 0..elements.len() {
        values.push(elements.next(&take)?);
    }
    Ok(values)
}

fn features(value: Value) -> Reading<Vec<String>> {
    all(value.array(MAX_FEATURES)?, |token| short_text(token).map(str::to_owned))
}

fn address(token: Token) -> Reading<IpAddr> {
    let text = short_text(token)?;
    text.parse().map_err(|_| {
        let shown: String = text.chars().take(MAX_SHOWN).collect();
        format!("expected an IPv4 or IPv6 address, got {shown:?}")
    })
}

fn optional_text(fields: &Fields, name: &'static str) -> Reading<Option<String>> {
    fields.optional(name).map(|value| value.read(short_text).map(str::to_owned)).transpose()
}

fn access_token(value: Value) -> Reading<Vec<u8>> {
    value.read(|token| token.bin(0..=MAX_TOKEN)).map(<[u8]>::to_vec)
}

fn short_text(token: Token<'_>) -> Reading<&str> {
    token.text(0..=MAX_TEXT)
}

/// For values whose range was checked before.
fn narrow<W, N: TryFrom<W>>(wide: W) -> Reading<N> {
    N::try_from(wide).map_err(|_| "expected a smaller value, got one out of range".to_owned())
}
