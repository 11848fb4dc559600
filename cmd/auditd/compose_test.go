package main

import (
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

// root is the repository's folder, seen from this one.
const root = "../.."

func composeProject(t *testing.T, profile string) *types.Project {
	t.Helper()
	options, err := cli.NewProjectOptions([]string{filepath.Join(root, "docker-compose.yml")}, cli.WithName("auditledger"), cli.WithProfiles([]string{profile}))
	if err != nil {
		t.Fatal(err)
	}
	project, err := options.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return project
}

// The compose file is what the Compose specification allows, all it refers to is there, every service that stays up has a
// health check, and each auditd is given settings that it takes.
func TestCompose(t *testing.T) {
	settings := map[string]bool{}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[config]()) {
		settings[f.Tag.Get("env")] = true
	}
	for profile, want := range map[string][]string{
		"cluster": {"auditd1", "auditd2", "certificates", "node1", "node2", "node3", "redis"},
		"laptop":  {"auditd", "db", "redis"},
	} {
		project := composeProject(t, profile)
		names := project.ServiceNames()
		if slices.Sort(names); !slices.Equal(names, want) {
			t.Errorf("%s: got services %v, want %v", profile, names, want)
		}
		for name, s := range project.Services {
			if s.HealthCheck == nil && name != "certificates" {
				t.Errorf("%s has no health check", name)
			}
			for other := range s.DependsOn {
				if !slices.Contains(names, other) {
					t.Errorf("%s depends on %s, which profile %s does not start", name, other, profile)
				}
			}
			if strings.HasPrefix(name, "auditd") {
				checkAuditd(t, s, settings)
			}
		}
	}
}

func checkAuditd(t *testing.T, s types.ServiceConfig, settings map[string]bool) {
	t.Helper()
	if !s.ReadOnly || !slices.Contains(s.CapDrop, "ALL") {
		t.Errorf("%s can write to its root, or keeps capabilities", s.Name)
	}
	ca := filepath.Join(t.TempDir(), "ca.crt")
	writeCertificate(t, ca, filepath.Join(t.TempDir(), "ca.key"), 1)
	args := []string{"--listen=0.0.0.0:8080", "--data-dir=/data"} // as in the Dockerfile
	for name, value := range s.Environment {
		if !settings[name] {
			t.Errorf("%s: there is no setting %s", s.Name, name)
		}
		args = append(args, "--"+strings.ToLower(strings.ReplaceAll(name, "_", "-"))+"="+strings.Replace(*value, "/certs/ca/ca.crt", ca, 1))
	}
	if _, err := parseConfig(args, io.Discard); err != nil {
		t.Errorf("%s: %v", s.Name, err)
	}
	mounts := map[string]bool{}
	for _, v := range s.Volumes {
		mounts[v.Target] = true
	}
	if !mounts["/data"] || !mounts[filepath.Clean(*s.Environment["SOURCES_FILE"])] {
		t.Errorf("%s: has mounts %v, needs /data and its sources file", s.Name, mounts)
	}
}

// The image's user has no rights, its settings exist, and it has a health check.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	_, last, ok := strings.Cut(string(text), "FROM scratch")
	if !ok {
		t.Fatal("the image is not made from scratch")
	}
	for _, want := range []string{"\nUSER 65532:65532\n", "\nHEALTHCHECK ", "\nVOLUME /data\n", `ENTRYPOINT ["/auditd"]`, "LISTEN=0.0.0.0:8080", "DATA_DIR=/data"} {
		if !strings.Contains(last, want) {
			t.Errorf("the Dockerfile does not say %q", want)
		}
	}
	if !strings.Contains(string(text), "CGO_ENABLED=0") {
		t.Error("the programs are not static")
	}
}
