# The scenarios of the integration table, for shells.
#
# usage: scenarios.sh NAME...
#
# Each prints "== NAME" and what it sees. They run one after another in the
# sandbox's first line; children of branches end inside their scenario. What is
# printed is the same for every helper.

# do_ makes a call and sets its RATOON_ variables.
do_() {
	vars=$(agentd call --format env --watch $$ "$@") || exit 1
	eval "$vars"
}

# code prints the code of the error that a call ends with.
code() {
	err=$(agentd call --watch $$ "$@" 2>&1 >/dev/null)
	case $? in
	0) echo '"ok"' ;;
	2) echo '"invalid_argument"' ;;
	5) echo '"timeout"' ;;
	*) echo "$err" | sed -n '1s/^agentd: \([a-z_]*\): .*/"\1"/p' ;;
	esac
}

# error prints what the host says to a call.
error() {
	what=$1
	shift
	err=$(agentd call --watch $$ "$@" 2>&1 >/dev/null) && err='agentd: ok'
	echo "$err" | sed -n "1s/^agentd: \([a-z_]*\):\( [a-z_]*:\)\{0,1\}/$what \1/p"
}

# results prints the results of branch $1 with $2 children.
results() {
	have= got=0
	while [ "$got" -lt "$2" ]; do
		do_ results ${have:+--have "$have"} "$1"
		have=$RATOON_HAVE
		got=$(echo "$have" | tr , '\n' | wc -l)
	done
	i=0
	while [ "$i" -lt "$2" ]; do
		eval "value=\$RATOON_RESULT_$i failure=\$RATOON_ERROR_$i"
		echo "$i ${failure:-$value}"
		i=$((i + 1))
	done
}

# lines prints the objects of the calls' JSON one a line.
objects() { agentd call "$@" | sed 's/},{/}\n{/g; s/\[{/[\n{/g'; }

# field prints a field of each of the objects.
field() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }

# state prints that of the newest timeline with a label.
state() { objects tree | grep "\"label\":\"$1\"" | field state | tail -n 1; }

newest_auto() { objects tree | grep '"class":"auto"' | field id | tail -n 1; }

# bool prints how a test went.
bool() { if "$@"; then echo true; else echo false; fi; }

flag() { bool [ -n "$1" ]; }

hang() { sleep 3600; }

snapshot() {
	count=1
	do_ snapshot --label first
	if [ -z "$RATOON_RESTORED" ]; then
		echo "taken $RATOON_PAYLOAD"
		count=2
		echo x >/workspace/later
		do_ restore --payload '{"tried":"a","n":1}' "$RATOON_CHECKPOINT"
	fi
	echo "restored $RATOON_PAYLOAD $count $(bool [ -e /workspace/later ])"
}

durable() {
	do_ snapshot --label lasting --durable
	if [ -z "$RATOON_RESTORED" ]; then
		info=$(objects tree | grep "\"id\":\"$RATOON_CHECKPOINT\".*\"class\"")
		echo "durable $(echo "$info" | sed -n 's/.*"durable":\([a-z]*\).*/\1/p') \"$(echo "$info" | field label)\""
		do_ restore "$RATOON_CHECKPOINT"
	fi
	echo "restored $RATOON_PAYLOAD"
}

# A word of a command line is at most 128 KiB long.
large() {
	x=$(head -c 100000 /dev/zero | tr '\0' x)
	do_ snapshot
	if [ -z "$RATOON_RESTORED" ]; then
		do_ restore --payload "\"$x\"" "$RATOON_CHECKPOINT"
	fi
	echo "payload $(bool [ "$RATOON_PAYLOAD" = "\"$x\"" ])"
	do_ branch --payloads "[\"$x\"]" 1
	if [ -n "$RATOON_INDEX" ]; then
		do_ finish "$RATOON_PAYLOAD"
	fi
	do_ results "$RATOON_BRANCH"
	echo "result $(bool [ "$RATOON_RESULT_0" = "\"$x\"" ])"
}

# at finishes a child that has come back at a checkpoint.
at() {
	payload=$RATOON_PAYLOAD
	do_ whoami
	if [ -n "$RATOON_INDEX" ]; then
		do_ finish "{\"at\":\"$1\",\"payload\":$payload}"
	fi
	echo "$1 $payload"
}

ancestors() {
	do_ snapshot --label root
	root=$RATOON_CHECKPOINT
	if [ -n "$RATOON_RESTORED" ]; then
		at root
		return
	fi
	do_ snapshot --label mid
	mid=$RATOON_CHECKPOINT
	if [ -n "$RATOON_RESTORED" ]; then
		at mid
		do_ restore --payload '"second"' "$root"
	fi
	do_ branch 2
	case $RATOON_INDEX in
	0) do_ restore --payload 0 "$root" ;;
	1) do_ restore --payload 1 "$mid" ;;
	esac
	results "$RATOON_BRANCH" 2
	do_ restore --payload '"first"' "$mid"
}

cycles() {
	total=0 round=0
	while [ $round -lt 20 ]; do
		do_ snapshot --label "round $round"
		if [ -z "$RATOON_RESTORED" ]; then
			drop=
			if [ $((round % 2)) = 1 ]; then drop=--drop-present; fi
			do_ restore --payload $round $drop "$RATOON_CHECKPOINT"
		fi
		total=$((total + RATOON_PAYLOAD)) round=$((round + 1))
	done
	echo "sum $total"
	do_ snapshot --label 'again and again'
	if [ "$RATOON_PAYLOAD" = null ]; then RATOON_PAYLOAD=0; fi
	if [ "$RATOON_PAYLOAD" -lt 3 ]; then
		do_ restore --drop-present --payload $((RATOON_PAYLOAD + 1)) "$RATOON_CHECKPOINT"
	fi
	echo "rounds $RATOON_PAYLOAD"
}

present() {
	do_ snapshot
	if [ -z "$RATOON_RESTORED" ]; then
		do_ restore --payload '"go"' "$RATOON_CHECKPOINT"
		echo "present $(flag "$RATOON_RESTORED") $RATOON_PAYLOAD"
		return
	fi
	echo "restored $RATOON_PAYLOAD"
	do_ restore --payload '"back"' "$(newest_auto)"
}

drop() {
	do_ snapshot
	if [ -z "$RATOON_RESTORED" ]; then
		do_ restore --drop-present --payload "\"$(newest_auto)\"" "$RATOON_CHECKPOINT"
	fi
	echo "kept nothing $(bool [ "\"$(newest_auto)\"" = "$RATOON_PAYLOAD" ])"
}

who() {
	do_ whoami
	sandbox=$RATOON_SANDBOX
	echo "whoami \"$RATOON_NODE\" $RATOON_DEPTH ${RATOON_INDEX:-null} \"$RATOON_LABEL\""
	do_ tree
	echo "tree $(bool [ "$RATOON_SANDBOX" = "$sandbox" ]) \"$RATOON_STATE\" [\"$(objects tree | grep '"state":"live"' | field node)\"]"
	do_ budget
	echo "depth $RATOON_BUDGET_DEPTH_LIMIT $RATOON_BUDGET_DEPTH_USED"
	echo "live $RATOON_BUDGET_LIVE_LIMIT $RATOON_BUDGET_LIVE_USED"
	echo "memory $RATOON_BUDGET_MEMORY_LIMIT $RATOON_BUDGET_MEMORY_USED"
	do_ sync
	echo synced
}

errors() {
	unknown=cp-aaaaaaaaaaaaaaaa
	echo "restore unknown $(code restore $unknown)"
	echo "restore path $(code restore ../../etc/passwd)"
	echo "restore nothing $(code restore '')"
	echo "branch 0 $(code branch 0)"
	echo "branch -1 $(code branch -- -1)"
	echo "branch 1025 $(code branch 1025)"
	echo "branch payloads $(code branch --payloads '[1]' 2)"
	echo "branch min_ok $(code branch --min-ok 3 2)"
	echo "branch at $(code branch --at $unknown 1)"
	echo "results unknown $(code results br-aaaaaaaaaaaaaaaa)"
	echo "label $(code snapshot --label "$(printf %257s x)")"
	echo "model $(code llm-query hello)"
}

detach() {
	do_ snapshot --label before
	if [ -n "$RATOON_RESTORED" ]; then
		echo "child \"$(state loner)\""
		do_ snapshot --label seen
		while [ "$(state loner)" != ended ]; do sleep 1; done
		echo "then \"$(state loner)\""
		return
	fi
	before=$RATOON_CHECKPOINT
	do_ branch --labels '["loner"]' 1
	if [ -n "$RATOON_INDEX" ]; then
		until objects tree | grep -q '"label":"seen"'; do sleep 1; done
		do_ finish '"nobody asks"'
	fi
	do_ restore --detach "$before"
}

replaced() {
	do_ snapshot
	if [ -n "$RATOON_RESTORED" ]; then
		echo "child \"$(state orphan)\""
		return
	fi
	before=$RATOON_CHECKPOINT
	do_ branch --labels '["orphan"]' 1
	if [ -n "$RATOON_INDEX" ]; then hang; fi
	do_ restore "$before"
}

branch() {
	do_ branch --payloads '["red",{"green":[1,2]},null]' 3
	if [ -n "$RATOON_INDEX" ]; then
		do_ finish "{\"index\":$RATOON_INDEX,\"n\":$RATOON_N,\"payload\":$RATOON_PAYLOAD}"
	fi
	echo "parent ${RATOON_INDEX:-null} $RATOON_N $RATOON_PAYLOAD"
	results "$RATOON_BRANCH" 3
}

names() {
	do_ branch --labels '["left","right"]' --env '[{"SIDE":"l"},{"SIDE":"r"}]' 2
	if [ -n "$RATOON_INDEX" ]; then
		do_ whoami
		env=$(agentd call whoami | sed -n 's/.*"env":\({[^}]*}\).*/\1/p')
		do_ finish "{\"env\":$env,\"index\":$RATOON_INDEX,\"label\":\"$RATOON_LABEL\"}"
	fi
	results "$RATOON_BRANCH" 2
}

nested() {
	level=1
	while [ $level -le 6 ]; do
		do_ branch 1
		if [ -z "$RATOON_INDEX" ]; then break; fi
		level=$((level + 1))
	done
	depths=
	if [ $level -le 6 ]; then
		do_ results "$RATOON_BRANCH"
		depths=$(echo "${RATOON_RESULT_0:-$RATOON_ERROR_0}" | tr -d '[]')
	fi
	if [ $level -gt 1 ]; then
		do_ whoami
		do_ finish "[${depths:+$depths,}$RATOON_DEPTH]"
	fi
	echo "depths [$depths]"
}

waves() {
	do_ branch --max-live 2 4
	if [ -n "$RATOON_INDEX" ]; then
		do_ finish "$(bool [ "$(objects tree | grep -c '"state":"live"')" -le 3 ])"
	fi
	results "$RATOON_BRANCH" 4
}

min_ok() {
	do_ branch --min-ok 1 2
	if [ -n "$RATOON_INDEX" ]; then do_ finish "$RATOON_INDEX"; fi
	results "$RATOON_BRANCH" 2
}

timeout() {
	do_ branch --timeout 6s 2
	case $RATOON_INDEX in
	0) hang ;;
	1) do_ finish '"in time"' ;;
	esac
	results "$RATOON_BRANCH" 2
}

cancel() {
	do_ branch 2
	case $RATOON_INDEX in
	0) hang ;;
	1) do_ finish '"done"' ;;
	esac
	do_ cancel "$RATOON_BRANCH" 0
	results "$RATOON_BRANCH" 2
}

adopt() {
	do_ branch 2
	if [ -n "$RATOON_INDEX" ]; then
		mine="memory of $RATOON_INDEX"
		do_ finish --keep "$RATOON_INDEX"
		restored=$RATOON_RESTORED payload=$RATOON_PAYLOAD
		do_ whoami
		echo "adopted \"$mine\" $(flag "$restored") $payload \"$RATOON_NODE\""
		return
	fi
	results "$RATOON_BRANCH" 2
	do_ adopt --payload '"come"' "$RATOON_BRANCH" 1
}

expand() {
	do_ branch 1
	if [ -n "$RATOON_INDEX" ]; then
		seen='"start"'
		while :; do
			do_ finish --keep "[$seen]"
			seen="$seen,$RATOON_PAYLOAD"
		done
	fi
	do_ results "$RATOON_BRANCH"
	start=$RATOON_CHECKPOINT_0
	do_ branch --at "$start" --payloads '["a","b"]' 2
	results "$RATOON_BRANCH" 2
	do_ branch --at "$start" --payloads '["c"]' 1
	results "$RATOON_BRANCH" 1
	do_ branch --at "$RATOON_CHECKPOINT_0" --payloads '["d"]' 1
	results "$RATOON_BRANCH" 1
	do_ snapshot --label point
	if [ -n "$RATOON_INDEX" ]; then
		do_ finish "[\"point\",$(flag "$RATOON_RESTORED"),$RATOON_PAYLOAD]"
	fi
	do_ branch --at "$RATOON_CHECKPOINT" --payloads '["e","f"]' 2
	results "$RATOON_BRANCH" 2
}

discard() {
	do_ branch 2
	case $RATOON_INDEX in
	0) do_ finish 0 ;;
	1) do_ finish --keep 1 ;;
	esac
	results "$RATOON_BRANCH" 2
	echo "not kept $(code adopt "$RATOON_BRANCH" 0)"
	do_ discard "$RATOON_BRANCH"
	echo "discarded $(code adopt "$RATOON_BRANCH" 1)"
}

patience() {
	do_ branch 1
	if [ -n "$RATOON_INDEX" ]; then hang; fi
	echo "waited $(code results --timeout 300ms "$RATOON_BRANCH")"
	do_ cancel "$RATOON_BRANCH" 0
	results "$RATOON_BRANCH" 1
}

exits() {
	do_ branch 3
	case $RATOON_INDEX in
	0)
		echo 'oh no' >&2
		exit 3
		;;
	1)
		kill -9 $$
		hang
		;;
	2) exit 0 ;;
	esac
	results "$RATOON_BRANCH" 3 >/dev/null
	objects results "$RATOON_BRANCH" | sort |
		sed -n 's/.*"index":\([0-9]*\).*"code":"\([a-z_]*\)".*"signal":"\([A-Z]*\)","status":\([-0-9]*\),"stderr":\("[^"]*"\).*/\1 \2 "\3" \4 \5/p'
}

handles() {
	do_ branch 1
	if [ -n "$RATOON_INDEX" ]; then
		do_ finish "[$(code cancel "$RATOON_BRANCH" 0)]"
	fi
	branch=$RATOON_BRANCH
	results "$branch" 1
	do_ snapshot
	if [ -z "$RATOON_RESTORED" ]; then
		do_ restore "$RATOON_CHECKPOINT"
	fi
	echo "restored $(code cancel "$branch" 0)"
}

# outcome tells how a pending results call ended.
outcome() {
	wait "$waiter"
	case $? in
	0) sed -n 's/.*"code":\("[a-z_]*"\).*/\1/p' /workspace/outcome ;;
	3) echo '"interrupted_by_fork"' ;;
	*) echo '"failed"' ;;
	esac
}

pending() {
	do_ branch 1
	if [ -n "$RATOON_INDEX" ]; then hang; fi
	slow=$RATOON_BRANCH
	agentd call --watch $$ results "$slow" >/workspace/outcome 2>&1 &
	waiter=$!
	sleep 1 # until the call is under way
	do_ branch 1
	if [ -n "$RATOON_INDEX" ]; then
		do_ finish "$(outcome_of)"
	fi
	results "$RATOON_BRANCH" 1
	echo "pending $(bool kill -0 $waiter)"
	do_ cancel "$slow" 0
	outcome >/workspace/told
	echo "outcome $(cat /workspace/told)"
}

# outcome_of is outcome where a substitution cannot wait for the shell's child.
outcome_of() {
	while kill -0 "$waiter" 2>/dev/null && grep -q '^State:.[^Z]' "/proc/$waiter/status"; do sleep 0.1; done
	sed -n '1s/^agentd: \([a-z_]*\): .*/"\1"/p' /workspace/outcome
}

callers() {
	for i in 0 1; do
		agentd call --watch $$ snapshot --label "caller $i" >"/workspace/made$i" &
	done
	wait
	first=$(field id </workspace/made0) second=$(field id </workspace/made1)
	labels=$(objects tree | grep -e "\"id\":\"$first\"" -e "\"id\":\"$second\"" | grep '"class"' | field label | sort)
	echo "made [\"$(echo "$labels" | sed ':a; N; s/\n/","/; ta')\"]"
}

# use talks to the worker and appends to the open file.
use() {
	echo "$1" >&4
	read -r answer <&5
	echo "$1" >&3
	used="[\"$answer\",\"$(wc -l </workspace/journal) $(tail -n 1 /workspace/journal)\"]"
}

survive() {
	mkfifo /workspace/asked /workspace/answered
	(n=0; while read -r x; do n=$((n + 1)); echo "$n $x"; done) </workspace/asked >/workspace/answered &
	worker=$!
	exec 4>/workspace/asked 5</workspace/answered 3>/workspace/journal
	use first
	echo "before $used"
	do_ snapshot
	if [ -n "$RATOON_RESTORED" ]; then
		use again
		echo "restored $used"
		kill $worker
		exec 3>&- 4>&- 5<&-
		return
	fi
	cp=$RATOON_CHECKPOINT
	do_ branch 2
	if [ -n "$RATOON_INDEX" ]; then
		use "child $RATOON_INDEX"
		do_ finish "$used"
	fi
	use parent
	echo "parent $used"
	results "$RATOON_BRANCH" 2
	do_ restore "$cp"
}

# limits prints all that identifies this timeline and what it may use.
limits() {
	agentd call whoami
	agentd call --format env budget | grep LIMIT= | sort
}

environment() {
	before=$(limits)
	export RATOON_NODE=0.7 RATOON_TIMELINE=tl-aaaaaaaaaaaaaaaa RATOON_MAX_DEPTH=99 RATOON_BUDGET_DEPTH_LIMIT=99
	echo "same $(bool [ "$(limits)" = "$before" ])"
}

over_depth() {
	do_ branch 1
	if [ -n "$RATOON_INDEX" ]; then
		do_ finish "$(code branch 1)"
	fi
	results "$RATOON_BRANCH" 1
}

over_width() { error width branch 4; }
over_live() { error live branch 3; }
over_memory() { error memory branch 2; }

# answer prints a model's answer.
answer() { do_ llm-query "$1" && echo "\"$RATOON_TEXT\""; }

over_calls() {
	echo "first $(answer one)"
	echo "second $(answer two)"
	error third llm-query three
}

over_disk() {
	made=0 last='"ok"'
	while [ "$last" = '"ok"' ] && [ $made -lt 50 ]; do
		last=$(code snapshot --label $made)
		made=$((made + 1))
	done
	echo "disk $last $(bool [ $made -gt 1 ])"
}

model() {
	echo "answer $(answer hello)"
	do_ llm-query --model other hello
	echo "named \"$RATOON_TEXT\""
	echo "failed $(code llm-query fail)"
}

flight() {
	agentd call --watch $$ llm-query hold >/workspace/outcome 2>&1 &
	waiter=$!
	do_ llm-query 'await hold'
	do_ branch 1
	if [ -n "$RATOON_INDEX" ]; then
		do_ finish "[$(outcome_of)]"
	fi
	results "$RATOON_BRANCH" 1
	do_ llm-query release
	wait $waiter
	echo "parent [\"$(field text </workspace/outcome)\"]"
}

siblings() {
	do_ branch 8
	if [ -n "$RATOON_INDEX" ]; then
		do_ finish "$(answer "sibling $RATOON_INDEX")"
	fi
	results "$RATOON_BRANCH" 8
	do_ budget
	echo "calls $RATOON_BUDGET_LLM_CALLS_USED"
}

for name; do
	echo "== $name"
	$name
done
