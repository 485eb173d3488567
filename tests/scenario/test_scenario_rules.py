"""Rules over several settings: what each refuses, with numbers, fix and places; and what lies just inside."""

import re
from pathlib import Path

import pytest

from harness.core.errors import UserError
from harness.scenario.axes import expand
from harness.scenario.derived import no_gpu_error
from harness.scenario.keys import dotted_keys
from harness.scenario.load import load_scenario
from harness.scenario.problems import Problem
from harness.scenario.rules import RULES, broken_rules
from harness.scenario.schema import Scenario
from tests.messages import facts
from tests.scenario.settings import scenario_of

CASES = """
whole_groups
    group_size: 6 -> 6 64 4; group_size 1 2 4 8 rollout_batch_size 60 66; group_size rollout_batch_size
    rollout_batch_size: 4 -> 8 4 4; group_size 1 2 4 rollout_batch_size 8; group_size rollout_batch_size
whole_minibatches
    minibatches_per_epoch: 3
        -> 3 64 1; minibatches_per_epoch 1 2 4 8 rollout_batch_size 63 66; minibatches_per_epoch rollout_batch_size
whole_microbatches
    minibatches_per_epoch: 2, gradient_accumulation_steps: 12
        -> 12 32 8; gradient_accumulation_steps 2 4 8 16 24 36; gradient_accumulation_steps rollout_batch_size
train_batch_holds_a_group
    minibatches_per_epoch: 16 -> 4 64 16 8; minibatches_per_epoch 8; rollout_batch_size minibatches_per_epoch group_size
endpoint_is_measured
    endpoint: weight_sync_seconds, transport_sweep: {} -> -; -; endpoint transport_sweep
    endpoint: weight_sync_seconds -> -; transport.type; endpoint transport.type
    @lag1, endpoint: reward_at_rollouts, lag_control: drop -> -; lag_control; endpoint lag_control
groups_compare
    group_size: 1 -> 1 2; group_size 8 loss.type; group_size loss.type
    advantage.delta: max_centered_rewards, group_size: 1
        -> 1 2; group_size 8 advantage.delta; group_size advantage.delta
    advantage.delta: leave_one_out_rewards, group_size: 1
        -> 1 2; group_size 8 advantage.delta; group_size advantage.delta
on_policy_loss
    loss.type: no_baseline, epochs_per_batch: 2, minibatches_per_epoch: 4
        -> 1 0 8 2 4 0 0; loss.type 1 1 0 0 allow_uncorrected; loss.type max_lag epochs_per_batch
        minibatches_per_epoch replay.capacity
    loss.type: no_baseline, replay.capacity: 8
        -> 1 0 1 1 1 0 8; loss.type 1 1 0 0 allow_uncorrected; loss.type max_lag epochs_per_batch
        minibatches_per_epoch replay.capacity
    loss.type: naive, epochs_per_batch: 10
        -> 1 0 10 10 1 0 0; loss.type 1 1 0 0 allow_uncorrected; loss.type max_lag epochs_per_batch
        minibatches_per_epoch replay.capacity
    @lag1, loss.type: reinforce_with_baseline
        -> 1 0 1 1 1 1 0; loss.type 1 1 0 0 allow_uncorrected; loss.type max_lag epochs_per_batch
        minibatches_per_epoch replay.capacity
delta_fits_the_loss
    loss.type: no_baseline, advantage.delta: max_rewards -> -; loss.type advantage.delta; advantage.delta loss.type
    loss.type: reinforce_with_baseline, advantage.delta: rewards
        -> -; loss.type advantage.delta; advantage.delta loss.type
delta_fits_the_normalization
    advantage.delta: normalized_rewards, advantage.normalize_by_std: false
        -> -; advantage.delta advantage.normalize_by_std; advantage.normalize_by_std advantage.delta
whole_distribution
    @apart, sampling.top_p: 0.9, max_lag: 2 -> 0.9 1 2; sampling.top_p 1 max_lag 0; sampling.top_p max_lag
    sampling.top_p: 0.95, loss.kl.monitor: true
        -> 0.95 1; sampling.top_p 1 loss.kl.monitor; sampling.top_p loss.kl.monitor
    @lag1, sampling.top_p: 0.5, loss.kl.monitor: true
        -> 0.5 1 1; sampling.top_p 1 max_lag 0 loss.kl.monitor; sampling.top_p max_lag loss.kl.monitor
    sampling.top_p: 0.5, replay.capacity: 8
        -> 0.5 1 8; sampling.top_p 1 replay.capacity 0; sampling.top_p replay.capacity
    sampling.top_p: 0.5, loss.importance.mode: tis
        -> 0.5 1; sampling.top_p 1 loss.importance.mode; sampling.top_p loss.importance.mode
reclone_interval
    loss.kl.reference: reclone -> -; loss.kl.reclone_every 10; loss.kl.reference loss.kl.reclone_every
    loss.kl.reclone_every: 5 -> 5; loss.kl.reference loss.kl.reclone_every; loss.kl.reclone_every loss.kl.reference
    loss.kl.reference: polyak, loss.kl.alpha: 0.5, loss.kl.reclone_every: 5
        -> 5; loss.kl.reference loss.kl.reclone_every; loss.kl.reclone_every loss.kl.reference
polyak_weight
    loss.kl.reference: polyak -> -; loss.kl.alpha 0.1; loss.kl.reference loss.kl.alpha
    loss.kl.reference: reclone, loss.kl.reclone_every: 5, loss.kl.alpha: 0.25
        -> 0.25; loss.kl.reference loss.kl.alpha; loss.kl.alpha loss.kl.reference
constant_is_used
    loss.constant: 16 -> 16; loss.aggregation loss.constant; loss.constant loss.aggregation
importance_has_two_policies
    @lag1, loss.importance.mode: tis
        -> 1 0; loss.proximal loss.importance.mode; loss.importance.mode max_lag replay.capacity loss.proximal
    replay.capacity: 8, loss.importance.mode: icepop
        -> 0 8; loss.proximal loss.importance.mode; loss.importance.mode max_lag replay.capacity loss.proximal
sequence_mask_weighs_tokens
    loss.importance.mode: seq-mask-tis, loss.importance.level: sequence
        -> -; loss.importance.level loss.importance.mode; loss.importance.level loss.importance.mode
k1_has_no_gradient
    loss.kl.estimator: k1, loss.kl.coefficient: 0.1
        -> 1 0.1 0; loss.kl.estimator 3 2 loss.kl.weighted_by_ratio; loss.kl.estimator loss.kl.coefficient
        loss.kl.weighted_by_ratio
kl_weight_is_used
    loss.kl.weighted_by_ratio: true
        -> 0; loss.kl.coefficient 0.01 loss.kl.weighted_by_ratio; loss.kl.weighted_by_ratio loss.kl.coefficient
proximal_is_another_policy
    loss.proximal: recompute -> 0 0; loss.proximal max_lag replay.capacity; loss.proximal max_lag replay.capacity
importance_bounds_are_used
    loss.importance.level: sequence, loss.importance.cap: 3.0
        -> -; loss.importance.mode loss.importance.level loss.importance.cap; loss.importance.level
        loss.importance.cap loss.importance.mode
    loss.importance.mode: tis, loss.importance.floor: 0.5
        -> -; loss.importance.mode loss.importance.floor; loss.importance.floor loss.importance.mode
ratio_level_is_used
    loss.type: naive, loss.ratio_level: sequence -> -; loss.type loss.ratio_level; loss.ratio_level loss.type
    loss.type: own, loss.function: losses:mine, loss.ratio_level: sequence
        -> -; loss.type loss.ratio_level; loss.ratio_level loss.type
clip_range_is_used
    loss.type: unclipped, loss.cliprange: 0.2, loss.cliprange_high: 0.3
        -> -; loss.type loss.cliprange loss.cliprange_high; loss.cliprange loss.cliprange_high loss.type
    loss.type: naive, loss.cliprange_high: 0.3 -> -; loss.type loss.cliprange_high; loss.cliprange_high loss.type
clip_range_is_of_the_ratio
    loss.ratio_level: sequence, loss.cliprange: 0.1
        -> 0.1 0.1; loss.cliprange 0.0003 0.0004 loss.type; loss.cliprange loss.ratio_level
    loss.ratio_level: sequence, loss.cliprange_high: 0.28
        -> 0.28 0.1; loss.cliprange_high 0.0003 0.0004 loss.type; loss.cliprange_high loss.ratio_level
dual_clip_is_used
    loss.type: cispo, loss.dual_clip: 3.0 -> 3; loss.type loss.dual_clip; loss.dual_clip loss.type
    loss.dual_clip: 3.0, advantage.delta: max_rewards
        -> 3; advantage.delta loss.dual_clip; loss.dual_clip advantage.delta
own_loss_is_named
    loss.type: own -> -; loss.function; loss.type loss.function
    loss.function: losses:mine -> -; loss.type loss.function; loss.function loss.type
own_advantage_is_named
    advantage.delta: own -> -; advantage.function; advantage.delta advantage.function
    advantage.function: losses:mine -> -; advantage.delta advantage.function; advantage.function advantage.delta
truncation_says_something
    loss.mask_truncated: true, sampling.pinned_lengths: [4, 8]
        -> 4 8; sampling.pinned_lengths loss.mask_truncated; loss.mask_truncated sampling.pinned_lengths
ban_has_an_engine
    loss.ban_eos: true, sampling.min_tokens: 0
        -> 0; sampling.min_tokens 1 loss.ban_eos; loss.ban_eos sampling.min_tokens
warmup_is_given_once
    steps: 30, optimizer.warmup_steps: 4, optimizer.warmup_ratio: 0.1
        -> 4 0.1 4 30; -; optimizer.warmup_steps optimizer.warmup_ratio
minimum_is_reached
    optimizer.min_learning_rate_ratio: 0.1
        -> 0.1 0; optimizer.schedule optimizer.min_learning_rate_ratio; optimizer.min_learning_rate_ratio
        optimizer.schedule
rate_is_reached
    optimizer.schedule: cosine, optimizer.warmup_steps: 60
        -> 60 60; optimizer.schedule; optimizer.schedule optimizer.warmup_steps steps
discarded_groups_teach_nothing
    dynamic_sampling.attempts: 3, advantage.delta: max_rewards
        -> -; advantage.delta dynamic_sampling.attempts 0; dynamic_sampling advantage.delta
    dynamic_sampling.attempts: 3, loss.type: no_baseline
        -> -; advantage.delta dynamic_sampling.attempts 0; dynamic_sampling loss.type
    dynamic_sampling.attempts: 3, group_size: 1, loss.type: own, loss.function: a:b, advantage.delta: own,
        advantage.function: a:b
        -> 1; group_size 2; group_size dynamic_sampling
rollouts_are_equal
    dynamic_sampling.attempts: 3, endpoint: reward_at_rollouts
        -> -; dynamic_sampling.attempts 0; endpoint dynamic_sampling
colocated_parts_take_turns
    max_lag: 2 -> 2 0; max_lag 0 placement.colocated; max_lag placement.colocated
arms_that_take_steps
    @lag1, interleaving: step -> 1 0; max_lag 0; max_lag interleaving
programs_run_alone
    interleaving: step, command: ["true"] -> -; -; interleaving command
    transport_sweep: {}, transport.type: nixl, command: ["true"] -> -; -; transport_sweep command
words_of_a_command
    command: ["true", "{sed}"] -> -; -; command
lag_control_has_lag
    lag_control: drop -> 0; max_lag 1 lag_control; lag_control max_lag
    lag_control: in_flight -> 0; max_lag 1 lag_control; lag_control max_lag
in_flight_engine
    @lag1, lag_control: in_flight, engine.type: a.b:C -> -; engine.type lag_control; engine.type lag_control
    @lag1, lag_control: in_flight, model.type: folder, model.path: m
        -> -; lag_control model.type engine.type; model.type lag_control
vllm_owns_its_group
    engine.type: vllm, transport.type: gloo -> -; transport.type; transport.type engine.type
sglang_has_its_process
    engine.type: sglang -> -; transport.type; transport.type engine.type
    engine.type: sglang, transport.type: nixl, sampling.top_p: 0.9
        -> 0.9 1; sampling.top_p 1 engine.type; sampling.top_p engine.type
shards_share_a_batch
    placement.generator.count: 9, transport.type: nixl
        -> 9 8; 8 rollout_batch_size; placement.generator.count rollout_batch_size group_size
    @lag1, lag_control: drop, placement.generator.count: 3, transport.type: nixl
        -> 3 8; lag_control; placement.generator.count rollout_batch_size group_size
weights_have_the_engines_type
    transport.type: nixl, transport.dtype: engine, placement.learner.ranks: 2, learner.sharding: ddp
        -> 2; transport.dtype; transport.dtype placement.learner.ranks
    @paced, transport.type: nixl, transport.dtype: engine -> -; transport.dtype; transport.dtype engine.type
actors_for_several_parts
    placement.generator.count: 2
        -> 2 1; placement.generator.count 1 transport.type; placement.generator.count transport.type
    placement.scorer.count: 2 -> 2 1; placement.scorer.count 1 transport.type; placement.scorer.count transport.type
    placement.address: auto -> -; placement.address transport.type; placement.address transport.type
one_host_transport
    placement.address: 10.0.0.1:6379, transport.type: shared_memory
        -> 10.0.0.1 6379; transport.type placement.address; transport.type placement.address
    @halves, placement.address: auto, transport.type: cuda_ipc
        -> -; transport.type placement.address; transport.type placement.address
gpu_transport
    transport.type: nccl -> -; placement.device transport.type; transport.type placement.device
    placement.device: cpu, transport.type: cuda_ipc
        -> -; placement.device transport.type; transport.type placement.device
nccl_parts_have_a_gpu_each
    @halves, transport.type: nccl
        -> 0.5 1 0.5 1; placement.colocated 1; transport.type placement.generator.gpus placement.learner.gpus
        placement.colocated
    @apart, placement.device: cuda, placement.generator.gpus: 0.25, placement.learner.gpus: 1, transport.type: nccl
        -> 0.25 1; placement.colocated 1; transport.type placement.generator.gpus
    @halves, transport_sweep.transports: [nccl]
        -> 0.5 1 0.5 1; placement.colocated 1; transport_sweep.transports placement.generator.gpus
        placement.learner.gpus
cuda_actors_reserve_gpus
    placement.device: cuda, placement.learner.gpus: 1, transport.type: nixl
        -> 0 0; 1 0.25; placement.generator.gpus placement.device
    placement.device: cuda, placement.generator.gpus: 1, transport.type: nixl
        -> 0 0; 1 0.25; placement.learner.gpus placement.device
sweep_on_one_machine
    placement.address: auto, transport.type: nixl, transport_sweep: {}
        -> -; placement.address; placement.address transport_sweep
    transport_sweep.transports: [nccl, nixl] -> -; placement.device; transport_sweep.transports placement.device
replay_holds_a_batch
    replay.sample_groups: 4 -> 0; replay.capacity replay.sample_groups; replay.capacity replay.sample_groups
    replay.capacity: 7 -> 7 8; replay.capacity 8 0; replay.capacity rollout_batch_size
    replay.capacity: 16, replay.sample_groups: 17 -> 17 16; 16; replay.sample_groups replay.capacity
newest_replays
    replay.capacity: 16, replay.sampling: newest
        -> 8 8; replay.sample_groups 8 replay.sampling replay.capacity 0; replay.sampling replay.sample_groups
replay_age_covers_lag
    @apart, max_lag: 2, replay.capacity: 8, replay.max_age: 1 -> 1 2; replay.max_age 2; replay.max_age max_lag
offload_has_something
    @deepspeed, placement.learner.ranks: 2, learner.offload.weights: true, learner.offload.optimizer: true
        -> -; learner.offload learner.sharding 2; learner.offload.weights learner.offload.optimizer learner.sharding
    @paced, learner.offload.gradients: true -> -; learner.offload; learner.offload.gradients model.type
ranks_share_something
    placement.learner.ranks: 2
        -> 2 1; placement.learner.ranks 1 learner.sharding 2; placement.learner.ranks learner.sharding
    placement.learner.ranks: 2, learner.sharding: fsdp2
        -> 2 1; placement.learner.ranks 1 transport.type; placement.learner.ranks transport.type
    placement.learner.ranks: 2, learner.sharding: fsdp2, transport.type: gloo
        -> 2; transport.type; transport.type placement.learner.ranks
    @fsdp2, @paced, placement.learner.ranks: 2 -> 2 1; placement.learner.ranks 1; placement.learner.ranks model.type
    placement.learner.ranks: 2, placement.address: auto, learner.sharding: fsdp2, transport.type: nixl
        -> 2; placement.interface; placement.interface placement.learner.ranks placement.address
zero_stage_is_deepspeeds
    learner.sharding: fsdp2, learner.zero_stage: 3
        -> 3 2; learner.sharding learner.zero_stage; learner.zero_stage learner.sharding
deepspeed_takes_one_dimension
    learner.sharding: deepspeed, learner.mesh.tensor: 2
        -> 2 1; learner.mesh.tensor 1 learner.sharding 2; learner.mesh.tensor learner.sharding
    learner.sharding: deepspeed, learner.mesh.replicate: 2
        -> 2 1; learner.mesh.replicate 1 learner.sharding 2; learner.mesh.replicate learner.sharding
    @deepspeed, placement.learner.ranks: 2, learner.zero_stage: 3
        -> 3; learner.publish; learner.publish learner.zero_stage
deepspeed_trains_float32
    @deepspeed, placement.learner.ranks: 2, model.precision: float16
        -> 16 16 32; model.precision 16 32; model.precision learner.sharding
    @deepspeed, placement.learner.ranks: 2, model.type: folder, model.path: m, model.dtype: bfloat16
        -> 16 32; model.dtype 32 model.precision 16 learner.sharding 2; model.dtype learner.sharding
mesh_takes_all_ranks
    @fsdp2, placement.learner.ranks: 3, learner.mesh.replicate: 2
        -> 3 2 2 1; 4; placement.learner.ranks learner.mesh.replicate learner.mesh.tensor
    @fsdp2, placement.learner.ranks: 6, learner.mesh.replicate: 2, learner.mesh.tensor: 2
        -> 6 4 2 2; 8; placement.learner.ranks learner.mesh.replicate learner.mesh.tensor
    placement.learner.ranks: 3, learner.sharding: ddp, learner.mesh.tensor: 2, transport.type: shared_memory
        -> 3 2 1 2; 4; placement.learner.ranks learner.mesh.replicate learner.mesh.tensor
    placement.learner.ranks: 4, learner.sharding: ddp, learner.mesh.replicate: 2, transport.type: shared_memory
        -> 2; learner.sharding 2; learner.mesh.replicate learner.sharding
publish_overlaps_training
    learner.overlapped_publish: true -> 0; learner.overlapped_publish max_lag 1; learner.overlapped_publish max_lag
    @lag1, learner.overlapped_publish: true, transport.type: gloo
        -> -; learner.overlapped_publish transport.type; learner.overlapped_publish transport.type
    @fsdp2, @lag1, placement.learner.ranks: 2, learner.overlapped_publish: true, learner.publish: per_tensor
        -> -; learner.overlapped_publish learner.publish; learner.overlapped_publish learner.publish
    @lag1, learner.overlapped_publish: true, learner.offload.weights: true
        -> -; learner.overlapped_publish learner.offload; learner.overlapped_publish learner.offload
stream_adds_up
    learner.stream: in_order
        -> 1 2; placement.generator.count 2 learner.stream; learner.stream placement.generator.count
    transport.type: shared_memory, placement.generator.count: 2, learner.stream: in_order
        -> -; placement.colocated learner.stream; learner.stream placement.colocated
    @stream, epochs_per_batch: 2 -> 2 1; epochs_per_batch 1 learner.stream; learner.stream epochs_per_batch
    @stream, minibatches_per_epoch: 2
        -> 2 1; minibatches_per_epoch 1 learner.stream; learner.stream minibatches_per_epoch
    @stream, replay.capacity: 16 -> 16 0; replay.capacity 0 learner.stream; learner.stream replay.capacity
    @stream, max_lag: 1, lag_control: drop -> -; lag_control learner.stream; learner.stream lag_control
    @stream, advantage.delta: batch_whitened_rewards
        -> -; advantage.delta learner.stream; learner.stream advantage.delta
    @stream, advantage.delta: own, advantage.function: own:advantage
        -> -; advantage.delta learner.stream; learner.stream advantage.delta
    @stream, model.precision: float16 -> 16 16 32; model.precision 16 32 learner.stream; learner.stream model.precision
    @stream, placement.learner.ranks: 2, learner.sharding: deepspeed
        -> 2; learner.sharding 2 learner.stream; learner.stream learner.sharding
    @stream, learner.offload.optimizer: true -> -; learner.offload learner.stream; learner.stream learner.offload
ranks_have_rows
    @fsdp2, placement.learner.ranks: 9, minibatches_per_epoch: 8
        -> 9 8; placement.learner.ranks 8 rollout_batch_size; placement.learner.ranks rollout_batch_size
        minibatches_per_epoch
rank_faults_strike
    faults.slow_rank.rank: 0, faults.slow_rank.share: 0.3
        -> 1; faults.slow_rank placement.learner.ranks 2; faults.slow_rank placement.learner.ranks
    @fsdp2, placement.learner.ranks: 2, faults.slow_rank.rank: 2, faults.slow_rank.share: 0.3
        -> 2 2 1; faults.slow_rank.rank 1; faults.slow_rank.rank placement.learner.ranks
ranks_stand_on_nodes
    @fsdp2, placement.learner.ranks: 3, placement.learner.per_node: [2, 2]
        -> 2 2 4 3; placement.learner.ranks 4; placement.learner.per_node placement.learner.ranks
    @fsdp2, placement.learner.ranks: 4, placement.learner.per_node: [3, 1], learner.mesh.tensor: 2
        -> 3 1 2; -; placement.learner.per_node learner.mesh.tensor
    @fsdp2, placement.learner.ranks: 3, placement.learner.per_node: [2, 1]
        -> 2 1; placement.learner.per_node placement.colocated; placement.learner.per_node placement.colocated
    @fsdp2, @apart, placement.learner.ranks: 3, placement.learner.per_node: [2, 1], placement.learner.cpus: 0
        -> 2 1; placement.learner.cpus 1; placement.learner.per_node placement.learner.cpus
ranks_have_a_gpu_each
    @fsdp2, placement.learner.ranks: 2, placement.learner.gpus: 0.5
        -> 0.5 2 1; 1 placement.colocated; placement.learner.gpus placement.learner.ranks
checkpoints_have_a_state
    @deepspeed, placement.learner.ranks: 2, checkpoint.every: 5
        -> 5; learner.sharding 2 checkpoint.every; checkpoint.every learner.sharding
    @paced, checkpoint.every: 5 -> 5; model.type checkpoint.every; checkpoint.every model.type
    @paced, checkpoint.keep_steps_every: 5
        -> 5; model.type checkpoint.keep_steps_every; checkpoint.keep_steps_every model.type
    transport_sweep: {}, checkpoint.every: 5 -> 5; checkpoint.every; checkpoint.every transport_sweep
    transport_sweep: {}, checkpoint.keep_steps: [1] -> 1; checkpoint.keep_steps; checkpoint.keep_steps transport_sweep
    transport_sweep: {}, checkpoint.keep_steps_every: 5
        -> 5; checkpoint.keep_steps_every; checkpoint.keep_steps_every transport_sweep
    @paced, checkpoint.keep_steps: [1] -> 1; model.type checkpoint.keep_steps; checkpoint.keep_steps model.type
    @deepspeed, placement.learner.ranks: 2, checkpoint.keep_steps: [1]
        -> 1; learner.sharding 2 checkpoint.keep_steps; checkpoint.keep_steps learner.sharding
    @deepspeed, placement.learner.ranks: 2, checkpoint.keep_steps_every: 5
        -> 5; learner.sharding 2 checkpoint.keep_steps_every; checkpoint.keep_steps_every learner.sharding
checkpoints_are_made
    checkpoint.asynchronous: true, checkpoint.keep: 3
        -> -; checkpoint.every 10 checkpoint.keep checkpoint.asynchronous; checkpoint.keep checkpoint.asynchronous
        checkpoint.every
arms_in_turns_make_no_checkpoints
    interleaving: step, checkpoint.every: 5 -> 5; checkpoint.every; checkpoint.every interleaving
kept_steps_are_made
    steps: 8, checkpoint.keep_steps: [2, 9] -> 9 8 7; 0 7; checkpoint.keep_steps steps
    steps: 8, checkpoint.keep_steps: [8] -> 8 8 7; 0 7; checkpoint.keep_steps steps
kept_policies_are_saved
    save_policy: false, save_policy_every: 5 -> 5; save_policy save_policy_every; save_policy_every save_policy
sorting_goes_together
    task.type: sorting -> -; -; task.type model.type
    model.type: sorting -> -; -; task.type model.type
trained_weights_are_no_float16
    model.type: folder, model.path: m, model.dtype: float16
        -> 16 16 0; model.precision 16 32 16 model.dtype 16; model.dtype
sorting_engine
    @sorting, engine.type: vllm -> -; engine.type; engine.type model.type
paced_goes_together
    model.type: paced -> -; -; model.type engine.type
    engine.type: paced -> -; -; model.type engine.type
warm_start_suits_the_task
    task.type: arithmetic, model.preset: tiny -> -; model.preset model.warm_start; model.preset task.type
    model.preset: maths -> -; model.preset model.warm_start; model.preset task.type
keyword_files_come_together
    task.train: a -> -; task.validation task.train; task.train task.validation
    task.validation: b -> -; task.train task.validation; task.validation task.train
    task.train: a, task.validation: b, task.train_prompts: 5
        -> 5 4096; task.train_prompts; task.train_prompts task.train
    task.train: a, task.validation: b, task.validation_prompts: 500
        -> 500 256; task.validation_prompts; task.validation_prompts task.train
    task.train: a, task.validation: b, task.seed: 1 -> 1 0; task.seed; task.seed task.train
keyword_prompts_are_there
    task.train_prompts: 78401 -> 78401 78400 2; task.train_prompts 78400; task.train_prompts task.keywords_per_prompt
    task.validation_prompts: 1401
        -> 1401 1400 2; task.validation_prompts 1400; task.validation_prompts task.keywords_per_prompt
rewards_have_names
    task.type: jsonl, task.train: t, task.reward: [] -> -; -; task.reward
    task.type: jsonl, task.train: t, task.reward: [a:score, {function: b:score, weight: 2}] -> 2; -; task.reward
    task.type: jsonl, task.train: t, task.reward: [{function: a:b, name: format}] -> -; -; task.reward
chat_template_of_a_folder
    task.chat_template: true -> -; model.type task.chat_template; task.chat_template model.type
    task.type: jsonl, task.train: t, task.reward: a:b, task.system_prompt: "Be brief."
        -> -; task.chat_template task.system_prompt; task.system_prompt task.chat_template
    task.type: jsonl, task.train: t, task.reward: a:b, task.chat_template_kwargs: {enable_thinking: false}
        -> -; task.chat_template task.chat_template_kwargs; task.chat_template_kwargs task.chat_template
    task.chat_template: true, task.chat_template_kwargs: {tokenize: false}, model.type: folder, model.path: m
        -> -; -; task.chat_template_kwargs
own_prompt_names_its_reward
    task.type: maths, task.train: t, task.prompt: r1_zer0, model.preset: maths
        -> 1 0; 1 task.reward 1; task.prompt task.reward
enough_validation_prompts
    evaluation.prompts: 257
        -> 257 256; evaluation.prompts 256 task.validation_prompts 257; evaluation.prompts task.validation_prompts
    task.type: arithmetic, model.preset: maths, evaluation.prompts: 257
        -> 257 256; evaluation.prompts 256 task.validation_prompts 257; evaluation.prompts task.validation_prompts
one_size_of_vllms_cache
    engine.type: vllm, engine.gpu_memory_utilization: 0.85, placement.device: cpu
        -> 0.85; engine.kv_cache_gib placement.generator.gpus 1; engine.gpu_memory_utilization
    engine.type: vllm, engine.kv_cache_gib: 2, engine.gpu_memory_utilization: 0.5
        -> 2 0.5; engine.gpu_memory_utilization engine.kv_cache_gib; engine.kv_cache_gib
        engine.gpu_memory_utilization
workers_have_gpus
    @vllm2
        -> 2; transport.type placement.generator.gpus 2 placement.device; engine.tensor_parallel transport.type
        placement.device
    @vllm2, placement.generator.gpus: 1, placement.generator.count: 2, placement.learner.gpus: 1,
        placement.learner.ranks: 4, learner.sharding: fsdp2, transport.type: nixl
        -> 1 2; 2 2 2 4; placement.generator.gpus engine.tensor_parallel
    @vllm2, placement.generator.gpus: 2, transport.type: nixl
        -> 2; placement.colocated; engine.tensor_parallel placement.colocated
token_bounds
    sampling.min_tokens: 33
        -> 33 32; sampling.min_tokens 32 sampling.max_tokens 33; sampling.min_tokens sampling.max_tokens
pinned_lengths_fit
    @paced, sampling.pinned_lengths: [4, 8] -> 4 8; sampling.pinned_lengths; sampling.pinned_lengths engine.type
    sampling.pinned_lengths: [8, 4] -> 8 4 32; sampling.pinned_lengths 4,32; sampling.pinned_lengths sampling.max_tokens
    sampling.pinned_lengths: [8, 64]
        -> 8 64 32; sampling.pinned_lengths 4,32; sampling.pinned_lengths sampling.max_tokens
    sampling.pinned_lengths: [32, 33]
        -> 32 33 32; sampling.pinned_lengths 4,32; sampling.pinned_lengths sampling.max_tokens
pinned_lengths_end_responses
    sampling.pinned_lengths: [4, 8], sampling.stop: [.] -> 4 8; sampling.stop; sampling.stop sampling.pinned_lengths
    sampling.pinned_lengths: [4, 8], sampling.min_tokens: 8
        -> 8 0 1 4 8; sampling.min_tokens 0 1; sampling.min_tokens sampling.pinned_lengths
held_out_once
    task.type: jsonl, task.train: a.jsonl, task.validation: b.jsonl, task.validation_fraction: 0.2, task.reward:
        rewards:length
        -> 0.2 0.1; task.validation task.validation_fraction; task.validation_fraction task.validation
"""
"""By rule: what breaks it and nothing else, and what is said; see ``told``."""
FINE = """
    group_size: 2
    group_size: 64
    group_size: 1, loss.type: no_baseline
    minibatches_per_epoch: 8
    gradient_accumulation_steps: 64
    epochs_per_batch: 8, loss.type: grpo_clip
    epochs_per_batch: 8, loss.type: no_baseline, allow_uncorrected: true
    @apart, max_lag: 2
    sampling.min_tokens: 32
    sampling.pinned_lengths: [1, 31]
    sampling.pinned_lengths: [32, 32]
    sampling.top_p: 0.5
    @apart, max_lag: 2, loss.kl.monitor: true
    evaluation.prompts: 300, task.type: jsonl, task.train: t, task.reward: a:b
    evaluation.prompts: 4
    loss.kl.reference: reclone, loss.kl.reclone_every: 5
    loss.kl.reference: polyak, loss.kl.alpha: 0.5
    optimizer.schedule: linear, optimizer.min_learning_rate_ratio: 0.1, optimizer.warmup_ratio: 0.1
    optimizer.warmup_steps: 1000
    loss.constant: 16, loss.aggregation: constant
    task.type: arithmetic, model.preset: maths
    task.type: arithmetic, model.preset: tiny, model.warm_start: false
    task.type: maths, task.train: t, model.preset: maths
    task.type: maths, task.train: t, task.prompt: own.txt, task.reward: r1_zero, task.chat_template: true,
        model.type: folder, model.path: m
    task.type: jsonl, task.train: t, task.reward: [a:b, {function: c:b, name: d}]
    task.type: jsonl, task.train: t, task.reward: a:b, model.preset: maths
    @vllm2, placement.device: cpu
    @vllm2, transport.type: nixl
    @vllm2, @apart, placement.device: cuda, placement.generator.gpus: 2, placement.learner.gpus: 1, transport.type:
        nixl
    @lag1, lag_control: drop
    @lag1, lag_control: in_flight
    @lag1, lag_control: in_flight, engine.type: vllm
    @lag1, lag_control: in_flight, engine.type: vllm, model.type: folder, model.path: m
    engine.type: vllm, transport.type: nixl
    @lag1, @paced, lag_control: in_flight
    @lag1, engine.type: a.b:C
    @lag1, model.type: folder, model.path: m
    placement.generator.count: 8, transport.type: nixl
    placement.generator.count: 3, transport.type: nixl
    @lag1, lag_control: drop, placement.generator.count: 4, transport.type: nixl
    placement.scorer.count: 2, transport.type: object_store
    placement.address: auto, transport.type: disk
    transport.type: shared_memory
    @gpus, transport.type: nccl
    placement.device: cuda, placement.generator.gpus: 1, placement.learner.gpus: 1, transport_sweep.transports:
        [nccl]
    @halves, transport.type: cuda_ipc
    placement.device: cuda
    @halves, transport_sweep.transports: [cuda_ipc, nixl]
    @paced
    replay.capacity: 8
    replay.capacity: 8, replay.sample_groups: 8, replay.max_age: 0
    @apart, max_lag: 2, replay.capacity: 8, replay.max_age: 2
    @lag1, loss.importance.mode: tis, loss.proximal: recompute
    loss.importance.mode: tis
    loss.importance.mode: seq-mask-tis
    loss.importance.mode: icepop, loss.importance.level: sequence
    loss.type: own, loss.function: losses:mine
    loss.type: own, loss.function: losses:mine, epochs_per_batch: 4, group_size: 1, advantage.delta: own,
        advantage.function: losses:mine
    @lag1, loss.type: cispo, loss.ratio_level: sequence
    loss.kl.estimator: k1, loss.kl.coefficient: 0.1, loss.kl.weighted_by_ratio: true
    loss.kl.estimator: k1, loss.kl.monitor: true
    loss.ban_eos: true, sampling.min_tokens: 0, sampling.pinned_lengths: [4, 8]
    loss.mask_truncated: true, loss.entropy_coefficient: 0.1
    loss.type: reinforce_with_baseline, advantage.delta: leave_one_out_rewards
    loss.type: reinforce_with_baseline, advantage.delta: batch_normalized_rewards
    loss.type: no_baseline, advantage.delta: rewards
    loss.type: reinforce_with_baseline, advantage.delta: centered_rewards
    loss.type: reinforce_with_baseline, advantage.delta: centered_rewards, advantage.normalize_by_std: false
    loss.type: naive, advantage.delta: max_rewards
    loss.type: grpo_clip, advantage.delta: rewards, group_size: 1
    loss.type: unclipped, epochs_per_batch: 10
    @lag1, loss.type: unclipped
    loss.type: naive, epochs_per_batch: 10, allow_uncorrected: true
    replay.capacity: 16, replay.max_age: 1
    checkpoint.asynchronous: true, checkpoint.keep: 3, checkpoint.every: 5
    optimizer.schedule: cosine, optimizer.warmup_steps: 59
    loss.ratio_level: sequence, loss.cliprange: 0.09
    loss.ratio_level: sequence, loss.type: cispo, loss.cliprange: 0.5
    loss.type: own, loss.function: losses:mine, loss.cliprange: 0.3
    loss.importance.mode: seq-mask-tis, loss.importance.floor: 0.8, loss.importance.cap: 1.2
    @sorting
    @paced, task.type: sorting
    @deepspeed, placement.learner.ranks: 2
    @deepspeed, placement.learner.ranks: 2, learner.zero_stage: 1
    @deepspeed, placement.learner.ranks: 2, learner.zero_stage: 3, learner.publish: per_tensor,
        learner.mesh.replicate: 1
    @deepspeed, placement.learner.ranks: 3, model.precision: bfloat16
    @deepspeed, learner.zero_stage: 3, model.precision: float16
    dynamic_sampling.attempts: 3
    dynamic_sampling.attempts: 1
    dynamic_sampling.attempts: 3, advantage.delta: leave_one_out_rewards
    @apart, dynamic_sampling.attempts: 3, max_lag: 2, lag_control: drop, replay.capacity: 16
    endpoint: reward_at_rollouts
    @fsdp2, @apart, placement.learner.ranks: 3, placement.learner.per_node: [2, 1]
    @fsdp2, @apart, placement.learner.ranks: 6, placement.learner.per_node: [4, 2], learner.mesh.tensor: 2
    @fsdp2, placement.learner.ranks: 2, steps: 8, faults.slow_rank.rank: 1, faults.slow_rank.share: 0.3
    @fsdp2, placement.learner.ranks: 8, minibatches_per_epoch: 8
    steps: 8, checkpoint.keep_steps: [7]
    placement.learner.ranks: 2, learner.sharding: ddp, learner.offload.gradients: true, transport.type:
        shared_memory
    learner.offload.weights: true
    @deepspeed, placement.learner.ranks: 2, learner.offload: {}
    @stream
    @stream, learner.sharding: fsdp2, placement.learner.ranks: 2
    @stream, max_lag: 1, learner.overlapped_publish: true
    @stream, learner.sharding: fsdp2, placement.learner.ranks: 2, max_lag: 1, lag_control: in_flight,
        learner.overlapped_publish: true
    task.train: a, task.validation: b
    task.train_prompts: 78400, task.validation_prompts: 1400
    engine.type: sglang, transport.type: nixl
    checkpoint.every: 5, checkpoint.keep_steps: [1], checkpoint.keep_steps_every: 5
    endpoint: weight_sync_seconds, transport.type: nixl
    interleaving: step
"""


def cases(table: str) -> list[str]:
    """Return the cases of a table, each with the lines that go on from it, which are indented further."""
    return [" ".join(case.split()) for case in re.split(r"\n {4}(?! )", table.rstrip())][1:]


BY_RULE = {block.split("\n")[0]: cases(block) for block in re.split(r"\n(?=\w)", CASES.strip())}
KEYS = frozenset(dotted_keys(Scenario))


def told(problem: Problem) -> str:
    """Return the rule's name, the numbers of the sentence, keys and numbers of the fix, and the settings at fault."""
    what, _, rule = problem.what.partition(" [rule: ")
    words = re.findall(r"[a-z]\w*(?:\.\w+)+|[a-z]+_\w+|\d+(?:[.,]\d+)*", problem.fix or "")
    fix = " ".join(word for word in words if word in KEYS or word[0].isdigit())
    at_fault = " ".join(".".join(map(str, path)) for path in problem.paths)
    return f"{rule.removesuffix(']')} -> {facts(what) or '-'}; {fix or '-'}; {at_fault}"


@pytest.mark.parametrize("rule", BY_RULE)
def test_a_broken_rule_alone_says_its_name_numbers_fix_and_settings(rule: str) -> None:
    for case in BY_RULE[rule]:
        settings, _, said = case.partition(" -> ")
        assert [told(problem) for problem in broken_rules(scenario_of(settings))] == [f"{rule} -> {said}"], settings


def test_every_row_of_the_rules_is_broken_by_a_case() -> None:
    scenarios = [scenario_of(case.partition(" -> ")[0]) for rows in BY_RULE.values() for case in rows]
    assert [f"{rule.name}: {rule.what}" for rule in RULES if not any(map(rule.breaks, scenarios))] == []


def test_what_lies_just_inside_a_rule_is_accepted() -> None:
    assert {case: problems for case in cases(FINE) if (problems := broken_rules(scenario_of(case)))} == {}


def test_several_broken_rules_are_all_reported() -> None:
    problems = broken_rules(scenario_of("group_size: 5, max_lag: 1, sampling.min_tokens: 99"))
    names = [problem.what.rsplit("[rule: ")[1] for problem in problems]
    assert names == ["whole_groups]", "colocated_parts_take_turns]", "token_bounds]"]


def test_loading_names_where_each_number_was_written(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("steps: 1\ngroup_size: 6\n")
    with pytest.raises(UserError) as caught:
        load_scenario(tmp_path / "s.yaml", ["rollout_batch_size=32"])
    assert facts(caught.value.what) == "6 32 2"
    places = f"group_size: {tmp_path}/s.yaml, line 2; rollout_batch_size: --set rollout_batch_size=32"
    assert caught.value.where == places


def test_a_huge_batch_is_refused_quickly() -> None:
    (problem,) = broken_rules(scenario_of(f"rollout_batch_size: {10**9 - 9}, group_size: 10"))
    assert facts(problem.what) == "10 999999991 1"


def test_a_scenario_made_in_python_is_held_to_the_rules() -> None:
    with pytest.raises(UserError, match="whole_groups"):
        expand(Scenario(group_size=6))


def test_a_missing_gpu_is_told_with_the_way_out() -> None:
    error = no_gpu_error()
    assert "`placement.device` is cuda" in error.what
    assert "placement.device to cpu" in (error.fix or "")
