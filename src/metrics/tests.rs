use super::*;

#[test]
fn everything_is_there_at_zero_and_each_counts() {
    let m = Metrics::new();
    let zero = m.encode();
    for line in [
        "holdfast_ops_nacked_total{code=\"REJECTED\"} 0",
        "holdfast_reactions_dropped_total{reason=\"late\"} 0",
        "holdfast_held_bytes 0",
        "holdfast_gateway_up_seconds_count 0",
        "holdfast_refused_total{reason=\"token\"} 0",
    ] {
        assert!(zero.contains(line), "{line} not in\n{zero}");
    }
    m.observe(&Observation::Nacked(Code::Overloaded));
    m.observe(&Observation::Settled { op_to_echo_us: 900 });
    m.observe(&Observation::ReactionDropped(ReactionDrop::Late));
    m.observe(&Observation::Resumed { us: 400_000 });
    m.listener(3, (9, 1), [0, 1, 0, 2, 0, 0, 0, 0]);
    m.listener(4, (10, 2), [0, 1, 0, 2, 5, 0, 0, 3]);
    m.gateway_up(37);
    m.gateway_down(37);
    m.resent_after_move(1_700_000_000_500_000, 1_700_000_000_000_000);
    m.held(2, 300);
    m.held(-1, -100);
    let text = m.encode();
    for line in [
        "holdfast_ops_nacked_total{code=\"OVERLOADED\"} 1",
        "holdfast_ops_acked_total 1",
        "holdfast_op_to_echo_seconds_count 1",
        "holdfast_reactions_dropped_total{reason=\"late\"} 1",
        "holdfast_resume_seconds_count 1",
        "holdfast_connections 4",
        "holdfast_accepted_total 10",
        "holdfast_silent_total 2",
        "holdfast_refused_total{reason=\"token\"} 5",
        "holdfast_refused_total{reason=\"proxy_malformed\"} 3",
        "holdfast_gateway_up_seconds_count 1",
        "holdfast_gateway_down_seconds_count 1",
        "holdfast_resend_after_move_seconds_sum 0.5",
        "holdfast_resend_after_move_seconds_count 1",
        "holdfast_last_resend_timestamp_seconds 1700000000.5",
        "holdfast_held_ops 1",
        "holdfast_held_bytes 200",
    ] {
        assert!(text.contains(line), "{line} not in\n{text}");
    }
}
