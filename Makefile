# The library's own checks. `make help` lists the targets.

GO ?= go
# The tests mostly wait for brokers, so more run at a time than there are cores.
PARALLEL ?= 6
STATICCHECK = $(GO) tool -modfile=$(CURDIR)/tools/go.mod staticcheck
BENCHTIME ?= 1x

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: test
test: lint unit bench-short integration ## everything: vet, staticcheck, unit and in-process tests, examples, real Kafka

.PHONY: lint
lint: ## gofmt, go vet and staticcheck, in all modules
	@test -z "$$(gofmt -l .)" || { echo "not gofmt-ed:"; gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(STATICCHECK) ./...
	cd integration && $(GO) vet ./... && $(STATICCHECK) ./...
	cd benchmarks && $(GO) vet ./... && $(STATICCHECK) ./...
	cd examples/protobuf && $(GO) vet ./... && $(STATICCHECK) ./...

.PHONY: unit
unit: ## unit tests, the in-process scenarios and the examples, with the race detector
	$(GO) test -race -parallel $(PARALLEL) ./...
	cd examples/protobuf && $(GO) test -race ./...

.PHONY: integration
integration: ## the suites on a real Kafka: KAFKA_BROKERS, else Docker, else Java and Maven
	cd integration && $(GO) test -race -parallel $(PARALLEL) -timeout 30m $$($(GO) list ./... | grep -v /soak)
	cd integration && $(GO) test -timeout 30m ./soak
	@cd integration && $(GO) run ./kafkatest/which

.PHONY: bench
bench: ## the benchmarks on a real Kafka
	cd integration && $(GO) test -run '^$$' -bench . -benchtime $(BENCHTIME) -timeout 30m . ./...

.PHONY: bench-recovery
bench-recovery: ## recovery beside a bare loop, and its memory, on a real Kafka; a JSON object a line
	cd benchmarks && $(GO) run ./recovery

.PHONY: bench-flow
bench-flow: ## a flow beside Kafka Streams, end to end, on a real Kafka, with Java 17 and Maven; a JSON object a line
	cd benchmarks && $(GO) run ./flow

.PHONY: bench-write
bench-write: ## fenced writes beside a plain producer, franz-go's session and Apache's client, on a real Kafka
	cd benchmarks && $(GO) run ./write

.PHONY: soak
soak: ## ten minutes of processes and brokers killed and paused at random, on a real Kafka: SOAK="-for 1h -seed 7"
	cd integration && $(GO) run ./soak $(SOAK)

.PHONY: bench-short
bench-short: ## the benchmarks' own tests, with few records on an in-process cluster
	cd benchmarks && $(GO) test -race ./...

.PHONY: fuzz
fuzz: ## the fuzz tests, for half a minute each
	$(GO) test -run '^$$' -fuzz FuzzParseMetadata -fuzztime 30s ./internal/format

.PHONY: quickstart
quickstart: ## run the quickstart example
	$(GO) run ./examples/quickstart
