# The service and the operator's tool, static, as a user without rights. All that changes is in /data.
FROM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -ldflags=-s -o /out/ ./cmd/auditd ./cmd/auditctl && mkdir /out/data

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/auditd /out/auditctl /
COPY --from=build --chown=65532:65532 /out/data /data
USER 65532:65532
ENV LISTEN=0.0.0.0:8080 DATA_DIR=/data LOG_FORMAT=json
EXPOSE 8080
VOLUME /data
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s CMD ["/auditctl", "ready"]
ENTRYPOINT ["/auditd"]
