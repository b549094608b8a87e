//! A client against a gateway of twenty lines that hangs up once.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use tokio_tungstenite::tungstenite::{Message, http::HeaderValue};

use super::*;
use crate::client::traffic::{Kind, Plan, games};
use crate::client::wire::Frame;

/// Answers attaches and ops; the first connection ends without a word after its first op.
#[expect(clippy::result_large_err, reason = "the type is tungstenite's")]
async fn gateway(listener: tokio::net::TcpListener) {
    let mut ver = 0;
    for life in 0.. {
        let Ok((tcp, _)) = listener.accept().await else { return };
        let callback = |_: &tokio_tungstenite::tungstenite::handshake::server::Request,
                        mut reply: tokio_tungstenite::tungstenite::handshake::server::Response| {
            reply.headers_mut().insert("Sec-WebSocket-Protocol", HeaderValue::from_static("holdfast.v1.json"));
            Ok(reply)
        };
        let mut socket = tokio_tungstenite::accept_hdr_async(tcp, callback).await.unwrap();
        'life: while let Some(Ok(message)) = socket.next().await {
            let Message::Text(text) = message else { continue };
            for line in text.lines() {
                let frame: Frame = serde_json::from_str(line).unwrap();
                let answer = match &*frame.t {
                    "attach" => format!(
                        r#"{{"t":"attached","session":"s","n":{},"epoch":1,"ver":{ver},"lane_seq":{ver}}}"#,
                        frame.n
                    ),
                    "hello" => r#"{"t":"welcome","gateway":"gw-1","dead_ms":6000}"#.to_owned(),
                    "op" if life == 0 => break 'life,
                    "op" => {
                        ver += 1;
                        let op = frame.own_op();
                        format!(
                            r#"{{"t":"event","session":"s","epoch":1,"ver":{ver},"op":{op},"data":{{"hand":true}}}}"#
                        )
                    }
                    _ => format!(r#"{{"t":"ping","n":{}}}"#, frame.n),
                };
                socket.send(Message::text(answer)).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn a_client_comes_back_and_sends_again_what_was_not_settled() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addrs = vec![listener.local_addr().unwrap()];
    let server = tokio::spawn(gateway(listener));
    let live = Arc::new(Live::default());
    let seat = Seat::new(Arc::from("s"), Plan::new(Kind::Meeting, 0, &games(0)[0], 1));
    let dial = Dial::new(addrs, None, 1);
    let mut client = Client::idle(0, Arc::from("ann"), "t".to_owned(), dial, live.clone());
    client.seats = vec![Placed { seat, offset_us: 0, every_us: 20_000 }];
    let start_us = now_us();
    let (phase, heard) = watch::channel(Phase::Run { start_us, until_us: start_us + 100_000 });
    let running = tokio::spawn(client.run(heard));
    tokio::time::sleep(Duration::from_millis(200)).await;
    while live.open_ops.load(Relaxed) > 0 || live.attached.load(Relaxed) == 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    phase.send_replace(Phase::Stop);
    let lines = running.await.unwrap();
    server.abort();
    let count = |what| lines.iter().filter(|l| l.what == what).count();
    assert_eq!((count(What::Connected), count(What::Closed)), (2, 2));
    assert_eq!(count(What::Echo), 5);
    assert!(lines.iter().any(|l| l.what == What::Sent && l.attempt == 2));
}

#[test]
fn the_clients_of_one_gateway_spread_evenly_over_the_others() {
    for gateways in 2..6 {
        let mut second = vec![0; gateways];
        for index in 0..gateways * (gateways - 1) * 10 {
            let order = order(index, 0, gateways);
            assert_eq!(order[0], 0);
            second[order[1]] += 1;
            let mut all = order.clone();
            all.sort_unstable();
            assert_eq!(all, (0..gateways).collect::<Vec<_>>());
        }
        assert!(second[1..].iter().all(|n| *n == gateways * 10), "{second:?}");
    }
}
