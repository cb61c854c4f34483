//! [`Message`] → bytes, as msgspec writes them for vLLM: fields in the order of the message types, the shortest
//! form of every integer and header, our own fields last.

use std::convert::Infallible;

use rmp::Marker;
use rmp::encode::{self, ByteBuf, ValueWriteError};

use super::super::ids::{KvRequestId, RoundSeq};
use super::super::keys::KeyBatch;
use super::super::message::{
    Connect, Dialect, Extension, Fetch, Lookup, LookupResp, Message, TcpOffer, TransferDone,
};

/// Appends the message to `out`, as vLLM would have written it. The legacy dialect has no rounds and no load
/// tokens; they are left out.
pub fn encode(message: &Message, dialect: Dialect, out: &mut Vec<u8>) {
    let mut writer = Writer { out: ByteBuf::from_vec(std::mem::take(out)) };
    writer.map(|map| {
        map.key("type").text(message.name());
        match message {
            Message::AbortAck(abort) => request_round(map, dialect, &abort.kv_request_id, abort.round_seq),
            Message::AbortFetch(abort) => request_round(map, dialect, &abort.kv_request_id, abort.round_seq),
            Message::Connect(connect) => put_connect(map, connect),
            Message::ConnectAck(ack) => map.key("peer_id").text(&ack.peer_id),
            Message::Disconnect(disconnect) => optional_text(map, "reason", disconnect.reason.as_deref()),
            Message::Fetch(fetch) => put_fetch(map, dialect, fetch),
            Message::Lookup(lookup) => put_lookup(map, dialect, lookup),
            Message::LookupResp(response) => put_lookup_resp(map, response),
            Message::TransferDone(done) => put_transfer_done(map, dialect, done),
        }
    });
    *out = writer.out.into_vec();
}

fn put_connect(map: &mut MapWriter, connect: &Connect) {
    map.key("peer_id").text(&connect.peer_id);
    map.key("agent_metadata").bin(&connect.agent_metadata);
    map.key("base_addr").unsigned(connect.base_addr);
    map.key("num_blocks").unsigned(connect.num_blocks);
    map.key("block_len").unsigned(connect.block_len);
    map.key("config_fingerprint").text(&connect.config_fingerprint);
    optional_text(map, "hash_seed", connect.hash_seed.as_deref());
    if let Some(extension) = &connect.extension {
        map.key("p2pkv").map(|map| put_extension(map, extension));
    }
}

fn put_extension(map: &mut MapWriter, extension: &Extension) {
    map.key("version").unsigned(extension.version.into());
    map.key("instance").bin(&extension.instance.0);
    optional_text(map, "dialed_as", extension.dialed_as.as_deref());
    optional_text(map, "dialed_as_echo", extension.dialed_as_echo.as_deref());
    if let Some(answers) = &extension.answers {
        map.key("answers").bin(answers);
    }
    map.key("transports").map(|map| {
        if let Some(tcp) = &extension.tcp {
            map.key("tcp").map(|map| put_tcp(map, tcp));
        }
        if extension.nixl {
            map.key("nixl").boolean(true);
        }
    });
    map.key("features").array(extension.features.iter(), |writer, feature| writer.text(feature));
}

fn put_tcp(map: &mut MapWriter, tcp: &TcpOffer) {
    map.key("addresses").array(tcp.addresses.iter(), |writer, address| writer.text(&address.to_string()));
    map.key("port").unsigned(tcp.port.into());
    map.key("token").bin(&tcp.token);
    map.key("host_identity").text(&tcp.host_identity);
}

fn put_fetch(map: &mut MapWriter, dialect: Dialect, fetch: &Fetch) {
    map.key("kv_request_id").text(fetch.kv_request_id.as_str());
    put_keys(
        map.key(match dialect {
            Dialect::Current => "keys",
            Dialect::Legacy => "block_hashes",
        }),
        &fetch.keys,
    );
    map.key("block_indexes").unsigned_array(&fetch.block_indexes);
    put_round(map, dialect, fetch.round_seq);
    if let (Some(token), Dialect::Current) = (fetch.load_token, dialect) {
        map.key("p2pkv_load").unsigned(token);
    }
}

fn put_lookup(map: &mut MapWriter, dialect: Dialect, lookup: &Lookup) {
    map.key("kv_request_id").text(lookup.kv_request_id.as_str());
    put_keys(map.key("keys"), &lookup.keys);
    put_round(map, dialect, lookup.round_seq);
}

fn put_lookup_resp(map: &mut MapWriter, response: &LookupResp) {
    map.key("kv_request_id").text(response.kv_request_id.as_str());
    put_keys(map.key("keys"), &response.keys);
    map.key("hits").array(response.hits.iter(), |writer, &hit| writer.boolean(hit));
}

fn put_transfer_done(map: &mut MapWriter, dialect: Dialect, done: &TransferDone) {
    map.key("kv_request_id").text(done.kv_request_id.as_str());
    map.key("success").boolean(done.success);
    put_round(map, dialect, done.round_seq);
}

fn request_round(map: &mut MapWriter, dialect: Dialect, id: &KvRequestId, round: RoundSeq) {
    map.key("kv_request_id").text(id.as_str());
    put_round(map, dialect, round);
}

fn put_round(map: &mut MapWriter, dialect: Dialect, round: RoundSeq) {
    match dialect {
        Dialect::Current => map.key("round_seq").unsigned(round.0),
        Dialect::Legacy => {}
    }
}

fn put_keys(writer: &mut Writer, keys: &KeyBatch) {
    writer.array_len(keys.len());
    writer.out.as_mut_vec().extend_from_slice(keys.elements());
}

fn optional_text(map: &mut MapWriter, name: &str, text: Option<&str>) {
    if let Some(text) = text {
        map.key(name).text(text);
    }
}

/// The marker before an integer of two bytes.
const U16: u8 = 0xcd;

struct Writer {
    out: ByteBuf,
}

impl Writer {
    fn text(&mut self, text: &str) {
        done(encode::write_str(&mut self.out, text));
    }

    fn bin(&mut self, bytes: &[u8]) {
        done(encode::write_bin(&mut self.out, bytes));
    }

    fn unsigned(&mut self, value: u64) {
        done(encode::write_uint(&mut self.out, value));
    }

    fn unsigned_array(&mut self, values: &[u64]) {
        self.array_len(values.len());
        self.out.as_mut_vec().reserve(3 * values.len());
        for value in values {
            match u16::try_from(*value).map(u16::to_be_bytes) {
                Ok([0, low @ 0..=0x7f]) => self.out.as_mut_vec().push(low),
                Ok([high @ 1..=0xff, low]) => self.out.as_mut_vec().extend_from_slice(&[U16, high, low]),
                _ => self.unsigned(*value),
            }
        }
    }

    fn boolean(&mut self, value: bool) {
        let Ok(()) = encode::write_bool(&mut self.out, value);
    }

    fn array<T>(&mut self, items: impl ExactSizeIterator<Item = T>, write: impl Fn(&mut Self, T)) {
        self.array_len(items.len());
        items.for_each(|item| write(self, item));
    }

    fn array_len(&mut self, len: usize) {
        // A message this long could not be sent: limits are far below.
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        done(encode::write_array_len(&mut self.out, len));
    }

    /// A map of at most 15 entries, which is more than any here has. Its header is set once they are counted.
    fn map(&mut self, fill: impl FnOnce(&mut MapWriter)) {
        let header = self.out.as_slice().len();
        done(encode::write_map_len(&mut self.out, 0));
        let mut map = MapWriter { writer: self, entries: 0 };
        fill(&mut map);
        let entries = map.entries;
        if let Some(byte) = self.out.as_mut_vec().get_mut(header) {
            *byte = Marker::FixMap(entries).to_u8();
        }
    }
}

struct MapWriter<'w> {
    writer: &'w mut Writer,
    entries: u8,
}

impl MapWriter<'_> {
    /// Begins an entry; its value is to be written to what is returned.
    fn key(&mut self, name: &str) -> &mut Writer {
        self.entries += 1;
        self.writer.text(name);
        self.writer
    }
}

/// Memory takes every write.
fn done<T>(written: Result<T, ValueWriteError<Infallible>>) {
    let Ok(_) = written;
}
