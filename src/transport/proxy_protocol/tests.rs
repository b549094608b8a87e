use rand::{Rng as _, SeedableRng as _, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::transport::{
    Peer,
    trust::{Header, Trust},
};

const IP4: [u8; 12] = [192, 0, 2, 7, 10, 0, 0, 1, 0xd4, 0x31, 0x1f, 0x90];

/// A header of version 2.
fn header(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
    let len = u16::try_from(block.len()).unwrap().to_be_bytes();
    [V2, &[command, family], &len, block].concat()
}

fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    [&[kind], &u16::try_from(value.len()).unwrap().to_be_bytes()[..], value].concat()
}

/// Addresses, TLVs and a right checksum.
fn summed(tlvs: &[u8]) -> Vec<u8> {
    let mut bytes = header(0x21, 0x11, &[&IP4[..], tlvs, &tlv(TLV_CRC32C, &[0; 4])].concat());
    let crc = (!crc32c(!0, &bytes)).to_be_bytes();
    let at = bytes.len() - 4;
    bytes[at..].copy_from_slice(&crc);
    bytes
}

fn client(addr: &str) -> Source {
    Source::Client(addr.parse().unwrap())
}

fn good() -> Vec<(Vec<u8>, Source)> {
    let mut ip6 = [0; 36];
    ip6[..4].copy_from_slice(&[0x20, 1, 0xd, 0xb9]);
    (ip6[15], ip6[33]) = (7, 9);
    let longest = format!("PROXY TCP6 {0} {0} 65535 65535\r\n", ["ffff"; 8].join(":"));
    let unknown = format!("PROXY UNKNOWN {0} {0} 65535 65535\r\n", ["ffff"; 8].join(":"));
    assert_eq!(unknown.len(), V1_BYTES_MAX);
    vec![
        (b"PROXY TCP4 192.0.2.7 10.0.0.1 54321 8080\r\n".to_vec(), client("192.0.2.7:54321")),
        (b"PROXY TCP4 255.255.255.255 255.255.255.255 0 65535\r\n".to_vec(), client("255.255.255.255:0")),
        (b"PROXY TCP6 2001:db9::7 ::1 9 8080\r\n".to_vec(), client("[2001:db9::7]:9")),
        (longest.into_bytes(), client("[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535")),
        (b"PROXY UNKNOWN\r\n".to_vec(), Source::Unknown),
        (unknown.into_bytes(), Source::Unknown),
        (header(0x21, 0x11, &IP4), client("192.0.2.7:54321")),
        (header(0x21, 0x21, &ip6), client("[2001:db9::7]:9")),
        (
            header(0x21, 0x11, &[&IP4[..], &tlv(4, &[9; 100]), &tlv(0xea, b"vpce-08d2bf15fac5001c9")].concat()),
            client("192.0.2.7:54321"),
        ),
        (summed(&[]), client("192.0.2.7:54321")),
        (summed(&tlv(1, b"h2")), client("192.0.2.7:54321")),
        // UDP, UNIX (stream and datagram), UNSPEC with and without a block
        (header(0x21, 0x12, &IP4), Source::Unknown),
        (header(0x21, 0x22, &ip6), Source::Unknown),
        (header(0x21, 0x31, &[b'x'; 216]), Source::Unknown),
        (header(0x21, 0x32, &[b'x'; 216]), Source::Unknown),
        (header(0x21, 0x00, &[]), Source::Unknown),
        (header(0x21, 0x00, &[7; 30]), Source::Unknown),
        // LOCAL, also with addresses that mean nothing, and a family of the future
        (header(0x20, 0x00, &[]), Source::Local),
        (header(0x20, 0x11, &IP4), Source::Local),
        (header(0x20, 0xff, &[1, 2, 3]), Source::Local),
        (header(0x20, 0x00, &vec![0; HEADER_BYTES_MAX - V2_FIXED]), Source::Local),
    ]
}

fn bad() -> Vec<Vec<u8>> {
    let mut wrong_sum = summed(&[]);
    wrong_sum[16] ^= 1;
    [
        "PROXY \r\n",
        "PROXY TCP4\r\n",
        "PROXY TCP5 1.1.1.1 1.1.1.1 1 1\r\n",
        "PROXY UDP4 1.1.1.1 1.1.1.1 1 1\r\n",
        "PROXY tcp4 1.1.1.1 1.1.1.1 1 1\r\n",
        "PROXY TCP4 1.1.1.1 1.1.1.1 1\r\n",
        "PROXY TCP4 1.1.1.1 1.1.1.1 1 1 \r\n",
        "PROXY TCP4 1.1.1.1  1.1.1.1 1 1\r\n",
        "PROXY TCP4 1.1.1.1 1.1.1.1 1 65536\r\n",
        "PROXY TCP4 1.1.1.1 1.1.1.1 +1 1\r\n",
        "PROXY TCP4 1.1.1.1 1.1.1.1 01 1\r\n",
        "PROXY TCP4 01.1.1.1 1.1.1.1 1 1\r\n",
        "PROXY TCP4 ::1 ::1 1 1\r\n",
        "PROXY TCP6 1.1.1.1 1.1.1.1 1 1\r\n",
        "PROXY TCP4 1.1.1.1 1.1.1.1 1 1\n",
        "PROXY UNKNOWN\n",
        "PROXY UNKNOWNX\r\n",
    ]
    .map(|line| line.as_bytes().to_vec())
    .into_iter()
    .chain([
        [&b"PROXY "[..], &[b'x'; 101]].concat(),
        b"PROXY TCP4 \xff\r\n".to_vec(),
        header(0x11, 0x11, &IP4),
        header(0x22, 0x11, &IP4),
        header(0x21, 0x41, &IP4),
        header(0x21, 0x13, &IP4),
        header(0x21, 0x11, &IP4[..11]),
        header(0x21, 0x21, &IP4),
        header(0x21, 0x31, &IP4),
        header(0x21, 0x11, &[&IP4[..], &[4]].concat()),
        header(0x21, 0x11, &[&IP4[..], &[4, 0, 5, 1]].concat()),
        header(0x21, 0x11, &[&IP4[..], &tlv(TLV_CRC32C, &[])].concat()),
        header(0x21, 0x11, &vec![0; HEADER_BYTES_MAX - V2_FIXED + 1]),
        wrong_sum,
    ])
    .collect()
}

#[test]
fn every_form_is_read_and_nothing_behind_it() {
    // RFC 3720, B.4
    assert_eq!(!crc32c(!0, &[0; 32]), 0x8a91_36aa);
    for (bytes, source) in good() {
        let whole = Parsed::Header { len: bytes.len(), source };
        assert_eq!(parse(&bytes), whole, "{}", bytes.escape_ascii());
        assert_eq!(parse(&[&bytes[..], b"\x16\x03\x01GET PROXY"].concat()), whole, "{}", bytes.escape_ascii());
        for cut in 0..bytes.len() {
            assert_eq!(parse(&bytes[..cut]), Parsed::Incomplete, "{} of {}", cut, bytes.escape_ascii());
        }
    }
}

#[test]
fn what_only_begins_like_one_is_malformed() {
    for bytes in bad() {
        assert!(matches!(parse(&bytes), Parsed::Malformed(_)), "{}: {:?}", bytes.escape_ascii(), parse(&bytes));
    }
    for other in ["GET / HTTP/1.1\r\n", "PROPFIND / HTTP/1.1\r\n", "PROXY\t", "\r\n\r\nGET", "\x16\x03\x01\x02\0"] {
        assert_eq!(parse(other.as_bytes()), Parsed::Absent, "{other:?}");
    }
}

/// Seeded: good and bad headers with bytes changed, cut and repeated. Nothing panics, no length is beyond what was given,
/// and what was said of a part is not taken back when the rest comes.
#[test]
fn noise_is_survived() {
    let mut rng = StdRng::seed_from_u64(3);
    let seeds: Vec<Vec<u8>> = good().into_iter().map(|g| g.0).chain(bad()).collect();
    for _ in 0..100_000 {
        let mut bytes = seeds[rng.random_range(0..seeds.len())].clone();
        for _ in 0..rng.random_range(0..4) {
            let at = rng.random_range(0..bytes.len());
            match rng.random_range(0..4) {
                0 => bytes[at] = rng.random(),
                1 => bytes[at] ^= 1 << rng.random_range(0..8),
                2 => bytes.truncate(at.max(1)),
                _ => bytes.extend_from_within(at..),
            }
        }
        let (whole, part) = (parse(&bytes), parse(&bytes[..rng.random_range(0..=bytes.len())]));
        assert!(!matches!(whole, Parsed::Header { len, .. } if len > bytes.len().min(HEADER_BYTES_MAX)));
        assert!(part == Parsed::Incomplete || part == whole, "{part:?}, then {whole:?}: {}", bytes.escape_ascii());
    }
}

fn trust(header: Header, networks: &[&str]) -> Trust {
    Trust { header, networks: networks.iter().map(|n| n.parse().unwrap()).collect(), forwarded_hops: 0 }
}

/// What `accept` makes of `pieces`, each written on its own after the one before was read, and of the end if `end`. Whoever
/// speaks has everything behind the header beside them, read by `accept` or not.
async fn hear(trust: &Trust, pieces: &[&[u8]], end: bool) -> (Result<Accepted, Refusal>, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    client.set_nodelay(true).unwrap();
    let (mut server, from) = listener.accept().await.unwrap();
    let sending = async {
        for piece in pieces {
            client.write_all(piece).await.unwrap();
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        }
        if end {
            client.shutdown().await.unwrap();
        }
        std::future::pending::<()>().await;
    };
    let mut heard = tokio::select! {
        biased;
        heard = accept(&mut server, from, trust) => heard,
        () = sending => unreachable!(),
    };
    drop(client);
    if let Ok(Accepted::Speaking(_, early)) = &mut heard {
        server.read_to_end(early).await.unwrap();
    }
    (heard, from)
}

#[tokio::test]
async fn headers_arrive_in_any_pieces_and_what_follows_is_kept() {
    let trust = trust(Header::Required, &["127.0.0.0/8"]);
    for (bytes, source) in good() {
        let single: Vec<&[u8]> = bytes.chunks(1).chain([&b"\x16"[..]]).collect();
        let joined = [&bytes[..], b"GET /v1/ws"].concat();
        for (pieces, behind) in [(single, &b"\x16"[..]), (vec![&joined[..]], b"GET /v1/ws")] {
            let (heard, from) = hear(&trust, &pieces, false).await;
            let peer = match source {
                Source::Client(addr) => Peer::known(addr),
                _ => Peer::behind(from),
            };
            assert_eq!(heard, Ok(Accepted::Speaking(peer, behind.to_vec())), "{}", bytes.escape_ascii());
        }
    }
}

#[tokio::test]
async fn who_may_send_one_and_who_must() {
    let v1: &[u8] = b"PROXY TCP4 192.0.2.7 10.0.0.1 54321 8080\r\nGET";
    let get: &[u8] = b"GET / HTTP/1.1";
    let (ours, other) = (&["127.0.0.0/8"][..], &["10.0.0.0/8"][..]);
    let named = Peer::known("192.0.2.7:54321".parse().unwrap());
    for (mode, networks, sent, expected) in [
        (Header::Required, ours, v1, Ok(Some(named))),
        (Header::Required, ours, get, Err(Refusal::Missing)),
        (Header::Required, other, v1, Err(Refusal::Untrusted)),
        (Header::Required, other, get, Err(Refusal::Untrusted)),
        (Header::Optional, ours, v1, Ok(Some(named))),
        (Header::Optional, ours, get, Ok(None)),
        (Header::Optional, other, v1, Err(Refusal::Untrusted)),
        (Header::Optional, other, get, Ok(None)),
        // not looked for: TLS or HTTP will not know what to make of it
        (Header::Off, ours, v1, Ok(None)),
        (Header::Optional, ours, b"PROXY nonsense\r\n", Err(Refusal::Malformed("not a line of version 1"))),
    ] {
        let trust = trust(mode, networks);
        let (heard, from) = hear(&trust, &[sent], false).await;
        let heard = heard.map(|a| match a {
            Accepted::Speaking(peer, _) => peer,
            Accepted::Silent => panic!("silent"),
        });
        let expected = expected.map(|p| p.unwrap_or(trust.direct(from)));
        assert_eq!(heard, expected, "{mode:?} {networks:?} {}", sent.escape_ascii());
    }
}

#[tokio::test]
async fn an_end_without_a_word_is_nobodys_fault() {
    let local = header(0x20, 0, &[]);
    for mode in [Header::Off, Header::Optional, Header::Required] {
        let trust = trust(mode, &["127.0.0.0/8"]);
        assert_eq!(hear(&trust, &[], true).await.0, Ok(Accepted::Silent), "{mode:?}");
    }
    let trust = trust(Header::Required, &["127.0.0.0/8"]);
    assert_eq!(hear(&trust, &[&local], true).await.0, Ok(Accepted::Silent));
    let cut = hear(&trust, &[&local[..9]], true).await.0;
    assert_eq!(cut, Err(Refusal::Malformed("closed before its end")));
}
